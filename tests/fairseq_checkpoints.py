"""fairseq checkpoints for tests: stored ones, and ones made from our models."""

import argparse
from pathlib import Path

import torch

from zipflm.config import AdaptiveInput, AdaptiveOutput, CharacterInput, FixedInput, Tie
from zipflm.interop import fairseq

GOLDEN = Path(__file__).parent / "golden"
CHECKPOINTS = sorted((GOLDEN / "checkpoints").glob("*.pt"))
DICT = GOLDEN / "data" / "dict.txt"
NEWEST = GOLDEN / "checkpoints" / "new_cfg_adpt.pt"
OLDEST = GOLDEN / "checkpoints" / "old_args_v062_wiki103.pt"

LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.out_proj",
    "ffn_norm": "final_layer_norm",
    "ffn_in": "fc1",
    "ffn_out": "fc2",
}


def contents(path=NEWEST):
    """Load a stored checkpoint as Python values."""
    stubs = [argparse.Namespace]
    for name in ("AverageMeter", "TimeMeter", "StopwatchMeter"):
        stubs.append((type(name, (), {}), f"fairseq.meters.{name}"))
    with torch.serialization.safe_globals(stubs):
        return torch.load(path, weights_only=True)


def options_of(config):
    """Return fairseq's options for a config."""
    adaptive = isinstance(config.output, AdaptiveOutput)
    flags = {
        "arch": "transformer_lm",
        "task": "language_modeling",
        "decoder_embed_dim": config.decoder.dim,
        "decoder_layers": config.decoder.num_layers,
        "decoder_attention_heads": config.decoder.num_heads,
        "decoder_ffn_embed_dim": config.decoder.ffn_dim,
        "decoder_input_dim": getattr(config.input, "dim", config.decoder.dim),
        "decoder_output_dim": config.output.dim,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation_dropout": 0.0,
        "no_decoder_final_norm": not config.decoder.final_norm,
        "adaptive_softmax_cutoff": _joined(config.output) if adaptive else None,
        "adaptive_softmax_factor": getattr(config.output, "factor", 4),
        "share_decoder_input_output_embed": not adaptive and config.tie != Tie.NONE,
        "tie_adaptive_weights": adaptive and config.tie != Tie.NONE,
        "tie_adaptive_proj": config.tie == Tie.PROJECTIONS,
        "adaptive_input": isinstance(config.input, AdaptiveInput),
        "character_embeddings": isinstance(config.input, CharacterInput),
        "tokens_per_sample": 16,
    }
    if isinstance(config.input, AdaptiveInput):
        flags |= {
            "adaptive_input_cutoff": _joined(config.input),
            "adaptive_input_factor": config.input.factor,
        }
    if isinstance(config.input, CharacterInput):
        flags |= {
            "character_filters": str(list(config.input.filters)),
            "character_embedding_dim": config.input.char_dim,
            "char_embedder_highway_layers": config.input.highway_layers,
        }
    return flags


def state_of(model):
    """Return the weights of a model as fairseq saves them, tied ones under both names."""
    config, ours = model.config, model.state_dict()
    state = {"version": torch.tensor([3.0])}
    for name, tensor in ours.items():
        if name.startswith("decoder.layers."):
            _, _, layer, part, kind = name.split(".")
            state[f"layers.{layer}.{LAYER[part]}.{kind}"] = tensor
        elif name.startswith("decoder.final_norm."):
            state[name.replace("decoder.final_norm", "layer_norm")] = tensor
    state |= _input_state(config, ours) | _output_state(config, ours)
    return {f"decoder.{name}": tensor for name, tensor in state.items()}


def _input_state(config, ours):
    if isinstance(config.input, FixedInput):
        names = {"input.table": "weight", "input.projection.weight": "../project_in_dim.weight"}
    elif isinstance(config.input, AdaptiveInput):
        names = {
            f"input.{ours_}.{band}": f"embeddings.{band}.{theirs}.weight"
            for band in range(len(config.input.cutoffs) + 1)
            for ours_, theirs in (("embeddings", 0), ("projections", 1))
        }
    else:
        names = {"input.bytes": "char_embeddings.weight", "input.symbols": "symbol_embeddings"}
        names |= {n: n.removeprefix("input.") for n in ours if ".convolutions." in n}
        names |= {
            n: n.removeprefix("input.").replace("highway", "highway.layers")
            for n in ours
            if ".highway." in n
        }
        names |= {f"input.projection.{kind}": f"projection.{kind}" for kind in ("weight", "bias")}
    state = {f"embed_tokens.{names[n]}": t for n, t in ours.items() if n in names}
    return {name.replace("embed_tokens.../", ""): tensor for name, tensor in state.items()}


def _output_state(config, ours):
    tied = config.tie != Tie.NONE
    if not isinstance(config.output, AdaptiveOutput):
        state = {"output_projection.weight": ours["input.table" if tied else "output.table"]}
        if "output.projection.weight" in ours:
            state["project_out_dim.weight"] = ours["output.projection.weight"]
        return state
    tables = "input.embeddings" if tied else "output.embeddings"
    head, clusters = ours[f"{tables}.0"], ours["output.clusters"]
    state = {"adaptive_softmax.version": torch.tensor([1])}
    if tied:
        state["adaptive_softmax.head.word_proj.weight"] = head
        state["adaptive_softmax.head.class_proj.weight"] = clusters
    else:
        state["adaptive_softmax.head.weight"] = torch.cat([head, clusters])
        if "output.projection.weight" in ours:
            state["project_out_dim.weight"] = ours["output.projection.weight"]
    for tail in range(len(config.output.cutoffs)):
        projection = ours.get(f"output.tail_projections.{tail}")
        if projection is None:
            projection = ours[f"input.projections.{tail + 1}"]
        state[f"adaptive_softmax.tail.{tail}.0.weight"] = projection
        state[f"adaptive_softmax.tail.{tail}.2.weight"] = ours[f"{tables}.{tail + 1}"]
    return state


def as_v062(options, state):
    """Convert options and state to the format of early 2019."""
    options = dict(options)
    options["relu_dropout"] = options.pop("activation_dropout")
    for name in ("no_decoder_final_norm", "tie_adaptive_proj"):
        options.pop(name, None)
    state = dict(state) | {"decoder.version": torch.tensor([2.0])}
    for name in list(state):
        if ".self_attn.q_proj." in name:
            parts = [state.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            state[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    table = state.pop("decoder.output_projection.weight", None)
    if table is not None and not options["share_decoder_input_output_embed"]:
        state["decoder.embed_out"] = table
    return options, state


def save_args(path, options, state, *, legacy=False):
    """Save a checkpoint with `args`, as a zip file or as the stream of torch before 1.6."""
    whole = {
        "args": argparse.Namespace(**options),
        "model": state,
        "optimizer_history": [{"num_updates": 60}],
        "extra_state": {},
        "last_optimizer_state": None,
    }
    torch.save(whole, path, _use_new_zipfile_serialization=not legacy)
    return path


def _joined(layer):
    return ",".join(map(str, layer.cutoffs))


def import_run(checkpoint, out):
    fairseq.import_run(checkpoint, DICT, out)
    return out
