"""Convert model options of all fairseq versions to those of the latest version.

Older files lack some options or name them differently. Options of fairseq 0.12.2 that would change
the model in a way that zipflm does not support are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from zipflm.messages import quoted

# Options that must be absent or have one of these values.
_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "task": ("language_modeling", None),
    "activation_fn": ("relu",),
    "decoder_normalize_before": (True,),
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
    "quant_noise_scalar": (0,),  # unlike quant_noise_pq, it also acts at inference
    "self_target": (False,),
    "future_target": (False,),
    "past_target": (False,),
    "output_dictionary_size": (-1,),
}
# Values of absent options. fairseq versions without an option behaved as if it had this value.
_WHEN_ABSENT: dict[str, Any] = {
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


def latest_options(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options for a config, as the latest fairseq would have saved them.

    `weights` determine values that older options do not specify. Raises a ValueError that lists
    unsupported options.
    """
    _check_supported(options)
    latest = _WHEN_ABSENT | {name: value for name, value in options.items() if value is not None}
    # The older name applies if the newer one is absent or 0.
    dropout = options.get("activation_dropout") or options.get("relu_dropout")
    latest["activation_dropout"] = dropout or 0.0
    for name in ("decoder_input_dim", "decoder_output_dim"):
        latest[name] = options.get(name) or options["decoder_embed_dim"]
    latest["no_decoder_final_norm"] = "decoder.layer_norm.weight" not in weights
    latest["tie_adaptive_proj"] = _has_tied_projections(latest, weights)
    return latest


def _check_supported(options: Mapping[str, Any]) -> None:
    unsupported = [
        name
        for name, values in _SUPPORTED_VALUES.items()
        if name in options and not _is_one_of(options[name], values)
    ]
    arch = options.get("arch") or "transformer_lm"
    # It becomes part of the name of the run, so it must be printable.
    if not (isinstance(arch, str) and arch.isprintable() and arch.startswith("transformer_lm")):
        unsupported.append("arch")
    if unsupported:
        pairs = ", ".join(f"{name}={quoted(options[name])}" for name in unsupported)
        raise ValueError(
            f"unsupported options: {pairs}; zipflm imports transformer_lm models with pre-norm, "
            "sinusoidal positions, ReLU and scaled embeddings"
        )


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    return isinstance(value, str | int | float | None) and value in values


def _has_tied_projections(latest: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    """Decide by the shape of the first tail projection, or by options if it is absent or square."""
    tail = weights.get("decoder.adaptive_softmax.tail.0.0.weight")
    if tail is None or tail.ndim != 2 or tail.shape[0] == tail.shape[1]:
        return bool(latest["tie_adaptive_proj"]) or latest.get("no_tie_adaptive_proj") is False
    return bool(tail.shape[0] == latest["decoder_output_dim"])
