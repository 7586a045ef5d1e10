"""Initialization after sharding gives the same weights for any number of processes."""

import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from training_runs import SMALL, assert_same, config_of, in_processes

from zipflm.data.folder import DataFolder
from zipflm.distributed import processes
from zipflm.model.precision import autocast
from zipflm.runs.load import empty_model, untrained_model
from zipflm.training import parallel
from zipflm.training.step import build_learner

CNN = [line for line in SMALL if not line.startswith("input.")]
MODELS = {
    "tied": {},
    "untied": {"preset": "tiny/ADP"},
    "characters": {"preset": "tiny/CNN", "base": [*CNN, "input.max_bytes=8"]},
}
# Sizes that are not divisible by the number of processes.
ODD = ["decoder.ffn_dim=19", "training.tokens_per_update=384"]


def learner_of(path, process, model="tied", overrides=()):
    torch.set_num_threads(1)  # called in child processes
    data = DataFolder.open(path)
    config = config_of(data, *ODD, *overrides, **MODELS[model])
    empty = empty_model(config, data.vocabulary)
    return build_learner(
        config, empty, process, fill=lambda: parallel.fill(empty, config.training.seed)
    )


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _save_first_weights(path, out, parallel):
    with processes.started("cpu") as process:
        for model in MODELS:
            learner = learner_of(path, process, model, [f"training.parallel={parallel}"])
            weights = {k: _whole(v) for k, v in learner.model.state_dict().items()}
            weights |= dict(learner.model.named_buffers())
            if process.is_first:
                save_file(weights, out / f"{model}.safetensors")


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize(("parallel", "processes"), [("fsdp", 3), ("ddp", 3)])
def test_initial_weights_equal_those_of_one_process(word_data, tmp_path, parallel, processes):
    assert (
        in_processes(processes, _save_first_weights, word_data.path, tmp_path, parallel)
        == [0] * processes
    )
    for name, options in MODELS.items():
        alone = untrained_model(config_of(word_data, *ODD, **options), word_data.vocabulary)
        expected = alone.state_dict() | dict(alone.named_buffers())
        assert_same(load_file(tmp_path / f"{name}.safetensors"), expected)


def test_fills_parameters_and_keeps_buffers(word_data):
    config = config_of(word_data, **MODELS["characters"])
    model = empty_model(config, word_data.vocabulary)
    spellings = model.input.spellings_VC.clone()
    parallel.allocate(model, torch.device("cpu"))
    parallel.fill(model, config.training.seed)
    assert torch.equal(model.input.spellings_VC, spellings) and spellings.any()
    assert_same(model.state_dict(), untrained_model(config, word_data.vocabulary).state_dict())


# 12 layers of 13 MB, 151 MB in all: each of three processes keeps 50 MB.
LARGE = ["decoder.dim=512", "decoder.ffn_dim=2048", "decoder.num_layers=12", "decoder.num_heads=2"]
LARGE += ["input.dim=512", "output.dim=512", "training.parallel=fsdp"]


def _peak_growth(path, out):
    """Write the peak growth of memory while a model is built, in MB."""
    with processes.started("cpu") as process:
        learner_of(path, process, overrides=["training.parallel=fsdp"])  # imports of torch
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        learner = learner_of(path, process, overrides=LARGE)
        grown = _memory("VmHWM") - before
        whole = sum(param.numel() for param in learner.model.parameters()) * 4 / 1e6
        (out / str(process.rank)).write_text(f"{grown} {whole}")


def _memory(which):
    return int(re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1e3


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_peak_memory_is_little_more_than_the_shards(word_data, tmp_path):
    assert in_processes(3, _peak_growth, word_data.path, tmp_path) == [0] * 3
    for rank in range(3):
        grown, whole = map(float, (tmp_path / str(rank)).read_text().split())
        assert whole > 140
        assert grown < whole / 3 + 25, f"{grown:.0f} MB for a third of {whole:.0f} MB"


def _check_types(path, out):
    """Check the types of weights during the forward pass and after it."""
    with processes.started("cpu") as process:
        overrides = ["training.parallel=fsdp", "training.dtype=bfloat16"]
        learner = learner_of(path, process, overrides=overrides)
        seen = []

        def record(module, inputs):
            seen.append(next(module.parameters()).dtype)

        model = learner.model
        for module in (model.input, model.decoder.layers[0].ffn_in):
            module.register_forward_pre_hook(record)
        words = torch.full((1, 16), 5)
        with autocast("bfloat16", "cpu"):
            nll = learner.scorer(words, words, torch.ones_like(words, dtype=torch.bool))
        nll.backward()
        at_rest = {p.dtype for p in model.parameters()} | {p.grad.dtype for p in model.parameters()}
        assert seen == [torch.bfloat16] * 2 and at_rest == {torch.float32}
        assert nll.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.multi_process
def test_fsdp_sends_bfloat16_and_keeps_float32(word_data, tmp_path):
    assert in_processes(2, _check_types, word_data.path, tmp_path) == [0, 0]


def test_does_not_accumulate_gradients_in_bfloat16():
    for precision, accumulates, params, reduces in (
        ("float32", False, None, None),
        ("float16", False, None, None),
        ("bfloat16", False, torch.bfloat16, torch.bfloat16),
        ("bfloat16", True, torch.bfloat16, torch.float32),
    ):
        policy = parallel.sharded_precision(precision, accumulates)
        assert (policy.param_dtype, policy.reduce_dtype) == (params, reduces)
