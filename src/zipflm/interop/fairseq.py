"""Import fairseq language models. fairseq itself is not needed.

`fairseq_file` reads a checkpoint, `fairseq_options` converts options of old versions, and `_NAMES`
below maps weight names. Unknown weights are errors, as are unknown model options that are enabled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zipflm.config import (
    PLAIN,
    AdaptiveInput,
    AdaptiveOutput,
    BatchConfig,
    CharacterInput,
    Config,
    FixedInput,
    FullOutput,
    InputConfig,
    ModelConfig,
    OutputConfig,
    Splitting,
    Tie,
    TransformerDecoder,
    Unit,
)
from zipflm.data.bpe import Codes
from zipflm.data.vocabulary import CONTINUES, Vocabulary
from zipflm.interop.fairseq_file import read_checkpoint
from zipflm.interop.fairseq_options import latest_options
from zipflm.messages import quoted, unquoted
from zipflm.model.language_model import LanguageModel
from zipflm.runs.checkpoint import Contents
from zipflm.runs.folder import write_imported
from zipflm.runs.records import ImportedState

# Index of a layer, vocabulary band or convolution in the name of a weight.
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")
_SOFTMAX = "decoder.adaptive_softmax"
_FUSED = re.compile(r"layers\.([0-9]+)\.self_attn\.in_proj_(weight|bias)")

# fairseq's name -> our name, or None if it is not a weight. {} is an index.
_NAMES: dict[str, str | None] = {
    "version": None,
    "adaptive_softmax.version": None,
    "adaptive_softmax.head._float_tensor": None,
    "embed_tokens._float_tensor": None,
    "embed_positions._float_tensor": None,
    "embed_positions.weights": None,  # sinusoids, recomputed
    "embed_tokens.weight": "input.table",
    "project_in_dim.weight": "input.projection.weight",
    "embed_tokens.embeddings.{}.0.weight": "input.embeddings.{}",
    "embed_tokens.embeddings.{}.1.weight": "input.projections.{}",
    "embed_tokens.char_embeddings.weight": "input.bytes",
    "embed_tokens.symbol_embeddings": "input.symbols",
    "embed_tokens.convolutions.{}.weight": "input.convolutions.{}.weight",
    "embed_tokens.convolutions.{}.bias": "input.convolutions.{}.bias",
    "embed_tokens.highway.layers.{}.weight": "input.highway.{}.weight",
    "embed_tokens.highway.layers.{}.bias": "input.highway.{}.bias",
    "embed_tokens.projection.weight": "input.projection.weight",
    "embed_tokens.projection.bias": "input.projection.bias",
    **{
        f"layers.{{}}.{theirs}.{kind}": f"decoder.layers.{{}}.{ours}.{kind}"
        for theirs, ours in {
            "self_attn_layer_norm": "attention_norm",
            "self_attn.q_proj": "query",
            "self_attn.k_proj": "key",
            "self_attn.v_proj": "value",
            "self_attn.out_proj": "attention_out",
            "final_layer_norm": "ffn_norm",  # the norm before the feed-forward
            "layer_norms.0": "attention_norm",
            "layer_norms.2": "ffn_norm",  # 1 is for attention to an encoder
            "fc1": "ffn_in",
            "fc2": "ffn_out",
        }.items()
        for kind in ("weight", "bias")
    },
    "layer_norm.weight": "decoder.final_norm.weight",
    "layer_norm.bias": "decoder.final_norm.bias",
    "output_projection.weight": "output.table",
    "embed_out": "output.table",
    "project_out_dim.weight": "output.projection.weight",
    "adaptive_softmax.head.class_proj.weight": "output.clusters",
    "adaptive_softmax.head.word_proj.weight": "output.embeddings.0",
    "adaptive_softmax.tail.{}.0.weight": "output.tail_projections.{}",
    "adaptive_softmax.tail.{}.2.weight": "output.embeddings.{}",
}


def model_config(options: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """Return the model config for options from `latest_options`."""
    decoder = TransformerDecoder(
        dim=options["decoder_embed_dim"],
        num_layers=options["decoder_layers"],
        num_heads=options["decoder_attention_heads"],
        ffn_dim=options["decoder_ffn_embed_dim"],
        dropout=options["dropout"],
        attention_dropout=options["attention_dropout"],
        relu_dropout=options["activation_dropout"],
        final_norm=not options["no_decoder_final_norm"],
        init="fairseq",
    )
    return ModelConfig(
        vocab_size=vocab_size,
        input=_input_config(options),
        decoder=decoder,
        output=_output_config(options),
        tie=_tie(options),
    )


def _input_config(options: Mapping[str, Any]) -> InputConfig:
    if options["character_embeddings"]:
        return CharacterInput(
            char_dim=options["character_embedding_dim"],
            filters=_filters(options["character_filters"]),
            highway_layers=options["char_embedder_highway_layers"],
        )
    if options["adaptive_input"]:
        return AdaptiveInput(
            cutoffs=_cutoffs(options, "adaptive_input_cutoff"),
            dim=options["decoder_input_dim"],
            factor=options["adaptive_input_factor"],
        )
    return FixedInput(dim=options["decoder_input_dim"])


def _output_config(options: Mapping[str, Any]) -> OutputConfig:
    if options["adaptive_softmax_cutoff"] is None:
        return FullOutput(dim=options["decoder_output_dim"])
    return AdaptiveOutput(
        cutoffs=_cutoffs(options, "adaptive_softmax_cutoff"),
        dim=options["decoder_output_dim"],
        factor=options["adaptive_softmax_factor"],
        # fairseq uses one rate for the layer's input and the tails.
        tail_dropout=options["adaptive_softmax_dropout"],
        input_dropout=options["adaptive_softmax_dropout"],
    )


def _tie(options: Mapping[str, Any]) -> Tie:
    # Full and adaptive output layers each have their own tying options.
    if options["adaptive_softmax_cutoff"] is None:
        return Tie.EMBEDDINGS if options["share_decoder_input_output_embed"] else Tie.NONE
    if not options["tie_adaptive_weights"]:
        return Tie.NONE
    return Tie.PROJECTIONS if options["tie_adaptive_proj"] else Tie.EMBEDDINGS


def _cutoffs(options: Mapping[str, Any], name: str) -> tuple[int, ...]:
    text = str(options[name])
    try:  # brackets around the numbers are optional
        return tuple(int(number) for number in text.strip(" ()[],").split(","))
    except ValueError:
        raise ValueError(f"{name}={quoted(text)}: expected numbers like '20000,60000'") from None


def _filters(text: str) -> tuple[tuple[int, int], ...]:
    pairs = re.findall(r"\((\d+), *(\d+)\)", text)
    if not pairs:
        raise ValueError(f"character_filters={quoted(text)}: expected '[(1, 128), ...]'")
    return tuple((int(size), int(features)) for size, features in pairs)


def model_weights(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Convert a fairseq state dict to the names of `LanguageModel(config).state_dict()`.

    Omits the copies of tied weights. Raises a ValueError that lists unknown names.
    """
    weights: dict[str, Tensor] = {}
    unknown: list[str] = []
    for name, tensor in state.items():
        converted = _convert_weight(name.removeprefix("decoder."), tensor, config)
        if converted is None:
            unknown.append(unquoted(name))
        else:
            weights |= converted
    if unknown:
        raise ValueError(f"unknown weights: {', '.join(sorted(unknown))}")
    return {name: tensor for name, tensor in weights.items() if not _is_copy(name, config.tie)}


def _convert_weight(name: str, tensor: Tensor, config: ModelConfig) -> dict[str, Tensor] | None:
    """Return our weights for one of fairseq's weights, or None if its name is unknown."""
    if name == "adaptive_softmax.head.weight" and config.output_bands is not None:
        num_words = config.output_bands.sizes[0]
        return {"output.embeddings.0": tensor[:num_words], "output.clusters": tensor[num_words:]}
    if fused := _FUSED.fullmatch(name):
        layer, kind = fused.groups()
        names = (f"decoder.layers.{layer}.{part}.{kind}" for part in ("query", "key", "value"))
        return dict(zip(names, tensor.chunk(3), strict=False))
    number = _NUMBER.search(name)
    template = name if number is None else _NUMBER.sub("{}", name, count=1)
    if template not in _NAMES:
        return None
    ours = _NAMES[template]
    if ours is None:
        return {}
    index = 0 if number is None else int(number[0])
    if ours == "output.embeddings.{}":  # our list includes the head
        index += 1
    return {ours.format(index): tensor}


def _is_copy(name: str, tie: Tie) -> bool:
    """Return whether an output weight is a copy of a tied input weight."""
    if tie != Tie.NONE and name.startswith(("output.table", "output.embeddings.")):
        return True
    return tie == Tie.PROJECTIONS and name.startswith("output.tail_projections.")


Source = str | PathLike[str]

# If more than this share of the words have a subword-nmt or sentencepiece marker, they are
# subwords. About half of the subwords of a dictionary have a marker, but very few words do.
_MAX_MARKED_WORDS = 0.05


def import_run(
    checkpoint: Source,
    dictionary: Source,
    out: Path,
    *,
    bpe_codes: Source | None = None,
    splitting: Splitting = PLAIN,
) -> Config:
    """Create the run folder `out`. The run can be evaluated and analyzed, but not resumed.

    `dictionary` is the `dict.txt` of the training data. Pass the `bpe_codes` and `splitting` of the
    training text, so that raw text is split the same way. Raises ValueError or OSError, naming the
    file, if a file is damaged, unsafe or unsupported, or the files do not match, and
    FileExistsError if `out` exists and is not an empty folder.
    """
    contents = read_model(checkpoint, dictionary, bpe_codes=bpe_codes, splitting=splitting)
    write_imported(out, contents)
    return contents.config


def read_model(
    checkpoint: Source,
    dictionary: Source,
    *,
    bpe_codes: Source | None = None,
    splitting: Splitting = PLAIN,
) -> Contents:
    """Read a fairseq model as the contents of a run folder. See `import_run`."""
    codes = None if bpe_codes is None else Codes.load(bpe_codes)
    file = read_checkpoint(checkpoint)
    vocabulary = Vocabulary.load(dictionary)
    try:
        # Check options first: an unsupported model would otherwise fail with a confusing error
        # about its weights.
        options = latest_options(file.options, file.weights, file.model_options)
        model = model_config(options, len(vocabulary))
        weights = model_weights(file.weights, model)
        _check_weights(weights, file.weights, model)
        unit = _detect_unit(dictionary, vocabulary) if codes is None else "bpe"
        config = _run_config(model, options, unit)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:  # options can have any type
        raise ValueError(f"{checkpoint}: {error}") from None
    # Copied, because the tensors may be views of the mapped file.
    weights = {n: t.detach().to(torch.float32, copy=True).contiguous() for n, t in weights.items()}
    state = ImportedState(update=file.updates, imported_from=str(checkpoint))
    return Contents(weights, {}, state, config, vocabulary, codes, splitting)


def _check_weights(
    weights: Mapping[str, Tensor], state: Mapping[str, Tensor], config: ModelConfig
) -> None:
    if isinstance(config.output, AdaptiveOutput) and f"{_SOFTMAX}.version" not in state:
        raise ValueError(
            f"{_SOFTMAX}.version is missing; the checkpoint uses an old adaptive softmax format, "
            "which current fairseq does not support either"
        )
    with torch.device("meta"):
        model = LanguageModel(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"{' '.join(str(error).split())}; if sizes differ, use the dict.txt of the "
            f"training data (this one has {config.vocab_size} entries, including special tokens)"
        ) from None


def _detect_unit(dictionary: Source, vocabulary: Vocabulary) -> Unit:
    if 1 - vocabulary.ends_word.mean() > _MAX_MARKED_WORDS:
        return "bpe"
    num_marked = sum(word.startswith("\u2581") for word in vocabulary.words)
    if num_marked > _MAX_MARKED_WORDS * len(vocabulary):
        raise ValueError(
            f"{dictionary}: {num_marked} of {len(vocabulary)} entries start with \u2581, the "
            f"marker of sentencepiece; zipflm supports only subword-nmt pieces ({CONTINUES})"
        )
    return "word"


def _run_config(model: ModelConfig, options: Mapping[str, Any], unit: Unit) -> Config:
    """Return the config of a run. Of the training options, only the block length is converted."""
    block = options.get("tokens_per_sample") or BatchConfig().block
    tokens = max(block, BatchConfig().tokens)
    return Config(
        **{field.name: getattr(model, field.name) for field in fields(ModelConfig)},
        name=f"fairseq/{options.get('arch') or 'transformer_lm'}",
        batches=BatchConfig(unit=unit, block=block, tokens=tokens, eval_block=block),
    )
