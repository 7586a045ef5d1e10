"""Training recipes.

`paper` leaves a preset unchanged. `modern` changes training settings and the decoder, but not the
input and output layers, so that factorizations stay comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from zipflm.config import Banded, Config, Muon, TransformerDecoder, WarmupDecay, require
from zipflm.presets import MODERN_DECODER, dataset_of, from_name
from zipflm.presets.family import Family
from zipflm.settings import override

RECIPES = ("paper", "modern")


def modern(config: Config, dataset: Family) -> Config:
    """Use Muon and AdamW, warm-up and decay, and modern settings for a Transformer decoder.

    Presets that already use Muon stay unchanged.
    """
    if isinstance(config.training.optimizer, Muon):
        return config
    decoder = replace(config.decoder, dropout=min(config.decoder.dropout, 0.1))
    if isinstance(decoder, TransformerDecoder):
        decoder = replace(
            decoder,
            **MODERN_DECODER,
            bias=False,
            attention_dropout=0.0,
            relu_dropout=0.0,
            input_residual=True,
            value_residual=True,
            attention_gate=True,
        )
    block = config.batches.block
    is_staged = config.batches.break_mode in ("none", "complete") and block >= 256
    training = replace(
        config.training,
        optimizer=Muon(
            matrix_lr=3e-3,
            table_lr=3e-3,
            lr=1e-3,
            beta2=0.99,
            weight_decay=0.1,
            matrix_weight_decay=0.1,
        ),
        schedule=WarmupDecay(),
        clip_norm=1.0,
        dtype="float32" if dataset.is_for_a_cpu else "bfloat16",
        compile=not dataset.is_for_a_cpu,
        stages=((0.5, block // 2),) if is_staged else (),
    )
    return replace(config, decoder=decoder, training=training)


def apply(recipe: str, config: Config, dataset: Family) -> Config:
    """Apply a recipe by name."""
    require(recipe in RECIPES, "recipe", recipe, "choose from " + ", ".join(RECIPES))
    return modern(config, dataset) if recipe == "modern" else config


def resolve(
    preset: str,
    recipe: str,
    overrides: Iterable[str],
    vocab_size: int,
    *,
    on_cpu: bool = False,
    held: Config | None = None,
) -> Config:
    """Build the config of a run from preset, recipe, vocabulary size and overrides.

    Cutoffs of the paper are fixed; those of other presets are scaled with the vocabulary. For
    `on_cpu` and `held`, see `with_default_dtype`.
    """
    overrides = list(overrides)
    _require_vocab_size(overrides, vocab_size)
    config, dataset = from_name(preset), dataset_of(preset)
    config = with_default_dtype(apply(recipe, config, dataset), on_cpu=on_cpu, held=held)
    if not dataset.is_of_the_paper:
        ratio = _num_predicted(overrides, vocab_size) / config.vocab_size
        input, output = _scale(config.input, ratio), _scale(config.output, ratio)
        config = replace(config, vocab_size=vocab_size, input=input, output=output)
    # In one call, because overrides can change cutoffs that exceed the vocabulary.
    return with_overrides(config, [*overrides, f"vocab_size={vocab_size}"])


def with_default_dtype(config: Config, *, on_cpu: bool, held: Config | None) -> Config:
    """Use float32 on a CPU, because most CPUs are slow with other dtypes. A resumed run keeps the
    dtype of its own config, `held`."""
    if held is None and not on_cpu:
        return config
    dtype = "float32" if held is None else held.training.dtype
    return replace(config, training=replace(config.training, dtype=dtype))


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Apply overrides. Raises ValueError if they set both `epochs` and `max_updates`."""
    changed = override(config, overrides)
    keys = [assignment.partition("=")[0] for assignment in overrides]
    require(
        not changed.training.epochs or "training.max_updates" not in keys,
        "training.epochs",
        changed.training.epochs,
        "cannot be combined with training.max_updates; set one of them",
    )
    return changed


def _num_predicted(overrides: Iterable[str], vocab_size: int) -> int:
    """Return the number of predicted ids, to which cutoffs are scaled. Invalid values are ignored
    here; `override` rejects them later."""
    pairs = (assignment.partition("=") for assignment in overrides)
    sizes = [size.replace("_", "") for key, _, size in pairs if key == "input.predicted_words"]
    size = int(sizes[-1]) if sizes and sizes[-1].isdecimal() else 0
    return size if 0 < size < vocab_size else vocab_size


def _require_vocab_size(overrides: Iterable[str], vocab_size: int) -> None:
    for assignment in overrides:
        key, _, size = assignment.partition("=")
        require(
            key != "vocab_size" or size.replace("_", "") == str(vocab_size),
            "vocab_size",
            size,
            f"the data folder has {vocab_size} ids; leave vocab_size out, or prepare another "
            "folder (zipflm prepare --max-size)",
        )


L = TypeVar("L")


def _scale(layer: L, ratio: float) -> L:
    """Scale the cutoffs of a layer, if it has any, and keep them increasing."""
    if not isinstance(layer, Banded):
        return layer
    cutoffs: list[int] = []
    for cutoff in layer.cutoffs:
        cutoffs.append(max(int(cutoff * ratio), cutoffs[-1] + 1 if cutoffs else 1))
    return replace(layer, cutoffs=tuple(cutoffs))
