"""fairseq's model options of all years in the words of its latest version.

Old files spell options differently or lack them; what they then meant is written down here, one
rule a line. An option that would change what the model computes and that this package does not
offer is refused by name, and so is a model option that nobody here has heard of, unless it is off.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

# Options that must have one of these values (or be absent): anything else is another model.
_ONLY: dict[str, tuple[Any, ...]] = {
    "task": ("language_modeling", None),
    "activation_fn": ("relu",),
    "decoder_learned_pos": (False,),
    "no_token_positional_embeddings": (False,),
    "no_scale_embedding": (False,),
    "layernorm_embedding": (False,),
    "add_bos_token": (False,),
    "base_layers": (0,),
    "scale_fc": (False,),
    "scale_attn": (False,),
    "scale_heads": (False,),
    "scale_resids": (False,),
    "decoder_xformers_att_config": (None,),
    "decoder_layers_to_keep": (None,),
    "quant_noise_scalar": (0,),  # unlike its sibling it also acts when the model is used
    "self_target": (False,),
    "future_target": (False,),
    "past_target": (False,),
    "output_dictionary_size": (-1,),
}
# What a section of model options must say. Old code made norms come first whatever a flat
# list says; later code believes the section.
_TRUE_IN_SECTION = ("decoder_normalize_before",)
# What a file means that does not have the option, because its version had no choice there.
_BEFORE: dict[str, Any] = {
    "adaptive_input": False,
    "adaptive_input_cutoff": None,
    "adaptive_input_factor": 4,
    "adaptive_softmax_cutoff": None,
    "adaptive_softmax_factor": 4,
    "adaptive_softmax_dropout": 0.0,
    "tie_adaptive_weights": False,
    "tie_adaptive_proj": False,
    "character_embeddings": False,
    "share_decoder_input_output_embed": False,
}
_SIZES = (
    "decoder_embed_dim",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_embed_dim",
)
_NEEDED = (*_SIZES, "dropout", "attention_dropout")
_NEEDED_BY_CHARACTERS = (
    "character_filters",
    "character_embedding_dim",
    "char_embedder_highway_layers",
)
# What kind of value the options have that are translated; None stands for "not set" everywhere.
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_SIZES, (int,)),
    "decoder_input_dim": (int,),
    "decoder_output_dim": (int,),
    "tokens_per_sample": (int,),
    "character_embedding_dim": (int,),
    "char_embedder_highway_layers": (int,),
    "character_filters": (str,),
    "adaptive_input_cutoff": (str,),
    "adaptive_softmax_cutoff": (str,),
    "adaptive_input_factor": (int, float),
    "adaptive_softmax_factor": (int, float),
    "adaptive_softmax_dropout": (int, float),
    "dropout": (int, float),
    "attention_dropout": (int, float),
    "activation_dropout": (int, float),
    "relu_dropout": (int, float),
    "adaptive_input": (bool,),
    "tie_adaptive_weights": (bool,),
    "tie_adaptive_proj": (bool,),
    "no_tie_adaptive_proj": (bool,),
    "character_embeddings": (bool,),
    "share_decoder_input_output_embed": (bool,),
    "no_decoder_final_norm": (bool,),
    "decoder_final_norm": (bool,),
}
_LARGEST = 2**31
# Values in messages: a file can hold a book under any name.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
# Of no consequence for a trained model.
_IGNORED = (
    "decoder_normalize_before",
    "decoder_layerdrop",
    "quant_noise_pq",
    "quant_noise_pq_block_size",
    "base_sublayers",
    "base_shuffle",
    "arch",  # looked at apart
    "max_target_positions",
    "checkpoint_activations",
    "offload_activations",
    "min_params_to_wrap",
    "tpu",
    "scale_parameter",  # Adafactor's
)
# The names of model options begin like this; a flat `args` also holds a hundred others.
_PREFIXES = (
    "decoder_",
    "encoder_",
    "adaptive_",
    "character_",
    "char_",
    "tie_",
    "share_",
    "scale_",
    "base_",
    "quant_noise_",
    "layernorm_",
)


def current(
    options: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    model_options: Collection[str] = (),
) -> dict[str, Any]:
    """All options that a config is made from, named as today; `weights` settle what they can.

    Of `model_options` every one must be known or off. The others may belong to training, and are
    taken for the model's by their names alone. Raises ValueError that lists the options which are
    missing or not understood.
    """
    _refuse(options, model_options)
    _require(options)
    now = _BEFORE | {name: value for name, value in options.items() if value is not None}
    # The older name counts where the newer one is absent or 0.
    dropout = options.get("activation_dropout") or options.get("relu_dropout")
    now["activation_dropout"] = dropout or 0.0
    for name in ("decoder_input_dim", "decoder_output_dim"):
        now[name] = options.get(name) or options["decoder_embed_dim"]
    now["no_decoder_final_norm"] = _has_no_final_norm(options, weights)
    now["tie_adaptive_proj"] = _ties_projections(now, weights)
    return now


def _require(options: Mapping[str, Any]) -> None:
    needed = [*_NEEDED, *(_NEEDED_BY_CHARACTERS if options.get("character_embeddings") else ())]
    missing = [name for name in needed if options.get(name) is None]
    if options.get("activation_dropout") is None and options.get("relu_dropout") is None:
        missing.append("activation_dropout")
    if missing:
        raise ValueError(f"options missing from the checkpoint: {', '.join(missing)}")


def _refuse(options: Mapping[str, Any], model_options: Collection[str]) -> None:
    known = {*_ONLY, *_KINDS, *_IGNORED}
    foreign = [
        f"{name}={_SHORT.repr(value)}"
        for name, value in options.items()
        if (name in _ONLY and not _is_one_of(value, _ONLY[name]))
        or (name in _KINDS and not _is_of_kind(value, _KINDS[name]))
        or (name in _TRUE_IN_SECTION and name in model_options and value is not True)
        or (
            (name in model_options or name.startswith(_PREFIXES))
            and name not in known
            and not _is_off(value)
        )
    ]
    arch = options.get("arch")
    if arch is not None and not str(arch).startswith("transformer_lm"):
        foreign.insert(0, f"arch={_SHORT.repr(arch)}")
    if foreign:
        raise ValueError(
            f"options that zipflm has no model for: {', '.join(foreign)}; it imports "
            "transformer_lm models with norms first, sinusoidal positions, ReLU and scaled "
            "embeddings"
        )


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    return isinstance(value, str | int | float | None) and value in values


def _is_off(value: Any) -> bool:
    """A plain no: what the option would add is not there."""
    return _is_one_of(value, (None, False, 0, ""))


def _is_of_kind(value: Any, kinds: tuple[type, ...]) -> bool:
    if value is None:
        return True
    # A bool is an int to Python, but no size.
    fits = isinstance(value, kinds) and (kinds == (bool,) or not isinstance(value, bool))
    return fits and (not isinstance(value, int | float) or 0 <= value < _LARGEST)


def _has_no_final_norm(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    version = weights.get("decoder.version")
    if weights and (version is None or float(version.flatten()[0]) <= 2):
        return True  # the code that wrote such files had none
    if "decoder_final_norm" in options:
        return not options["decoder_final_norm"]
    if "no_tie_adaptive_proj" in options:
        return True
    if "no_decoder_final_norm" in options:
        return bool(options["no_decoder_final_norm"])
    return "decoder.layer_norm.weight" not in weights


def _ties_projections(now: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    """By the shape of the first tail's projection, which says it in files of every age."""
    said = bool(now["tie_adaptive_proj"]) or now.get("no_tie_adaptive_proj") is False
    tail = weights.get("decoder.adaptive_softmax.tail.0.0.weight")
    if tail is None or tail.ndim != 2 or tail.shape[0] == tail.shape[1]:
        return said
    return bool(tail.shape[0] == now["decoder_output_dim"])
