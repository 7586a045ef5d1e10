"""Ways to train any preset: functions from a complete config to a complete config.

`paper` is the identity. `modern` changes the optimisation and what surrounds the paper's input and
output layers, never these layers themselves: the factorizations stay comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from zipflm.config import (
    AdaptiveInput,
    AdaptiveOutput,
    Config,
    Muon,
    WarmupDecay,
    require,
)
from zipflm.overrides import override
from zipflm.presets import MODERN_DECODER, from_name


def paper(config: Config) -> Config:
    """The preset as it is."""
    return config


def modern(config: Config) -> Config:
    """Muon and AdamW, warm-up and decay, and a decoder in the manner of 2025."""
    is_small = config.name.startswith(("tiny/", "demo/"))
    decoder = replace(
        config.decoder,
        **MODERN_DECODER,
        bias=False,
        dropout=min(config.decoder.dropout, 0.1),
        attention_dropout=0.0,
        relu_dropout=0.0,
    )
    block = config.batches.block
    is_staged = config.batches.break_mode != "sentence" and block >= 256
    training = replace(
        config.training,
        optimizer=Muon(matrix_lr=2e-3, table_lr=3e-3, lr=1e-3),
        schedule=WarmupDecay(),
        clip_norm=1.0,
        # A small model trains on a CPU in less time than compiling it takes.
        precision="float32" if is_small else "bfloat16",
        compile=not is_small,
        stages=((0.5, block // 2),) if is_staged else (),
    )
    return replace(config, decoder=decoder, training=training)


RECIPES: dict[str, Callable[[Config], Config]] = {"paper": paper, "modern": modern}


def apply(name: str, config: Config) -> Config:
    """The recipe of that name on a preset."""
    require(name in RECIPES, "recipe", name, "choose from " + ", ".join(RECIPES))
    return RECIPES[name](config)


def resolve(preset: str, recipe: str, overrides: Iterable[str], vocab_size: int) -> Config:
    """The config of a run: preset, recipe, the data folder's vocabulary, overrides."""
    overrides = list(overrides)
    _require_own_size(overrides, vocab_size)
    config = apply(recipe, from_name(preset))
    if not _is_of_the_paper(config):
        config = fit_vocabulary(config, vocab_size)
    # Overrides come before the paper's cutoffs are checked, since they may mend these.
    return fit_vocabulary(override(config, overrides), vocab_size)


def _require_own_size(overrides: Iterable[str], vocab_size: int) -> None:
    """The folder's ids are what there is to train on: no other number of them can be asked for."""
    for assignment in overrides:
        key, _, size = assignment.partition("=")
        require(
            key != "vocab_size" or size.replace("_", "") == str(vocab_size),
            "vocab_size",
            size,
            f"the data folder's vocabulary has {vocab_size} ids; leave vocab_size out, or prepare "
            "a folder with as many words (zipflm prepare --max-size)",
        )


def fit_vocabulary(config: Config, size: int) -> Config:
    """The config for a vocabulary of `size` ids.

    The cutoffs of the paper's models are part of them, and a vocabulary too small for them is an
    error; those of the other presets follow the vocabulary, so that these run on any corpus.
    """
    if size == config.vocab_size:
        return config
    if _is_of_the_paper(config):
        for name, layer in (("input", config.input), ("output", config.output)):
            if isinstance(layer, AdaptiveInput | AdaptiveOutput):
                require(
                    layer.cutoffs[-1] < size,
                    f"{name}.cutoffs",
                    layer.cutoffs,
                    f"the data folder's vocabulary has only {size} ids; prepare it with more "
                    f"words, or set {name}.cutoffs to smaller numbers",
                )
        return replace(config, vocab_size=size)
    ratio = size / config.vocab_size
    return replace(
        config,
        vocab_size=size,
        input=_scale_cutoffs(config.input, ratio),
        output=_scale_cutoffs(config.output, ratio),
    )


def _scale_cutoffs(layer: Any, ratio: float) -> Any:
    if not isinstance(layer, AdaptiveInput | AdaptiveOutput):
        return layer
    cutoffs: list[int] = []
    for cutoff in layer.cutoffs:
        cutoffs.append(max(int(cutoff * ratio), cutoffs[-1] + 1 if cutoffs else 1))
    return replace(layer, cutoffs=tuple(cutoffs))


def _is_of_the_paper(config: Config) -> bool:
    return config.name.startswith(("wikitext-103/", "billion-word/"))
