"""Convert model options of all fairseq versions to those of the latest version.

Older files lack some options or name them differently. Options that would change the model in a way
that zipflm does not support are errors, as are unknown model options that are enabled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from zipflm.messages import quoted, unquoted

# Options that must be absent or have one of these values.
_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
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
_REQUIRED = """
    decoder_embed_dim decoder_layers decoder_attention_heads decoder_ffn_embed_dim
    dropout attention_dropout
""".split()
_REQUIRED_BY_CHARACTERS = """
    character_filters character_embedding_dim char_embedder_highway_layers
""".split()
# Other options that are converted.
_CONVERTED = """
    decoder_input_dim decoder_output_dim tokens_per_sample activation_dropout relu_dropout
    no_tie_adaptive_proj no_decoder_final_norm decoder_final_norm
""".split()
# Options without effect on a trained model.
_IGNORED = """
    decoder_normalize_before decoder_layerdrop quant_noise_pq quant_noise_pq_block_size
    base_sublayers base_shuffle max_target_positions checkpoint_activations offload_activations
    min_params_to_wrap tpu
    scale_parameter
""".split()  # scale_parameter is an option of Adafactor
_KNOWN = {*_WHEN_ABSENT, *_REQUIRED, *_REQUIRED_BY_CHARACTERS, *_CONVERTED, *_IGNORED}
# Prefixes that identify model options in a flat `args`, which also has training options.
_PREFIXES = tuple(
    "decoder_ encoder_ adaptive_ character_ char_ tie_ share_ scale_ base_ quant_noise_ "
    "layernorm_".split()
)


def latest_options(
    options: Mapping[str, Any], weights: Mapping[str, Tensor], model_options: Collection[str] = ()
) -> dict[str, Any]:
    """Return the options for a config, as the latest fairseq would have saved them.

    `weights` determine values that older options do not specify. An unknown option must be off if
    it is in `model_options` or named like a model option; others may belong to training. Raises
    a ValueError that lists missing or unsupported options.
    """
    _check_supported(options, model_options)
    _check_present(options)
    latest = _WHEN_ABSENT | {name: value for name, value in options.items() if value is not None}
    # The older name applies if the newer one is absent or 0.
    dropout = options.get("activation_dropout") or options.get("relu_dropout")
    latest["activation_dropout"] = dropout or 0.0
    for name in ("decoder_input_dim", "decoder_output_dim"):
        latest[name] = options.get(name) or options["decoder_embed_dim"]
    latest["no_decoder_final_norm"] = _has_no_final_norm(options, weights)
    latest["tie_adaptive_proj"] = _has_tied_projections(latest, weights)
    return latest


def _check_present(options: Mapping[str, Any]) -> None:
    required = _REQUIRED + (_REQUIRED_BY_CHARACTERS if options.get("character_embeddings") else [])
    missing = [name for name in required if options.get(name) is None]
    if options.get("activation_dropout") is None and options.get("relu_dropout") is None:
        missing.append("activation_dropout")
    if missing:
        raise ValueError(f"options missing from the checkpoint: {', '.join(missing)}")


def _check_supported(options: Mapping[str, Any], model_options: Collection[str]) -> None:
    unsupported = [
        name
        for name, value in options.items()
        if not _is_supported(name, value, is_model_option=name in model_options)
    ]
    if unsupported:
        pairs = ", ".join(f"{unquoted(name)}={quoted(options[name])}" for name in unsupported)
        raise ValueError(
            f"unsupported options: {pairs}; zipflm imports transformer_lm models with pre-norm, "
            "sinusoidal positions, ReLU and scaled embeddings"
        )


def _is_supported(name: str, value: Any, *, is_model_option: bool) -> bool:
    if name == "arch":
        # It becomes part of the name of the run, so it must be printable.
        is_name = isinstance(value, str) and value.isprintable()
        return value is None or (is_name and value.startswith("transformer_lm"))
    if name in _SUPPORTED_VALUES:
        return _is_one_of(value, _SUPPORTED_VALUES[name])
    if name == "decoder_normalize_before" and is_model_option:
        # Old code used pre-norm regardless of this option; later code honors it.
        return value is True
    if name in _KNOWN:
        return True
    is_off = _is_one_of(value, (None, False, 0, ""))
    return is_off or not (is_model_option or name.startswith(_PREFIXES))


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    return isinstance(value, str | int | float | None) and value in values


def _has_no_final_norm(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    version = weights.get("decoder.version")
    if weights and (version is None or float(version.flatten()[0]) <= 2):
        return True  # this version of fairseq had no final norm
    if "decoder_final_norm" in options:
        return not options["decoder_final_norm"]
    if "no_tie_adaptive_proj" in options:
        return True
    if "no_decoder_final_norm" in options:
        return bool(options["no_decoder_final_norm"])
    return "decoder.layer_norm.weight" not in weights


def _has_tied_projections(latest: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    """Decide by the shape of the first tail projection, or by options if it is absent or square."""
    tail = weights.get("decoder.adaptive_softmax.tail.0.0.weight")
    if tail is None or tail.ndim != 2 or tail.shape[0] == tail.shape[1]:
        return bool(latest["tie_adaptive_proj"]) or latest.get("no_tie_adaptive_proj") is False
    return bool(tail.shape[0] == latest["decoder_output_dim"])
