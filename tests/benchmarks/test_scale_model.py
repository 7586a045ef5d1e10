"""The scale model predicts the bytes that real processes hold and send."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from benchmark_scripts import load
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import config_of, in_processes

from zipflm.data.folder import DataFolder
from zipflm.distributed import processes
from zipflm.runs.load import untrained_model
from zipflm.runs.records import Position
from zipflm.training import step
from zipflm.training.parallel import local_shard
from zipflm.training.step import build_learner
from zipflm.training.stream import Stream, accumulation

scale = load("scale_model")

RING = {
    "c10d.allreduce_.default": lambda sizes, world: 2 * sizes[0] * (world - 1) / world,
    "c10d._allgather_base_.default": lambda sizes, world: sizes[0] * (world - 1) / world,
    "c10d._reduce_scatter_base_.default": lambda sizes, world: sizes[1] * (world - 1) / world,
    "c10d.alltoall_base_.default": lambda sizes, world: sizes[0] * (world - 1) / world,
}
"""Bytes that a process sends in a ring, by collective, given the sizes of its operands."""


class Counting(TorchDispatchMode):
    """Counts the bytes that collectives send."""

    def __init__(self, world):
        super().__init__()
        self._world = world
        self.sent = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if str(operation) in RING:
            sizes = [_bytes(argument) for argument in args[:2]]
            if max(sizes) > 64:  # ignore the statistics of an update
                self.sent[str(operation)] += RING[str(operation)](sizes, self._world)
        return operation(*args, **(kwargs or {}))


def _bytes(value):
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


BFLOAT16 = "training.dtype=bfloat16"
FSDP = "training.parallel=fsdp"
SHARDED = "training.tables=sharded"
MODES = {
    "ddp": [],
    "fsdp": [FSDP],
    "ddp, tables sharded": [SHARDED],
    "fsdp, tables sharded": [FSDP, SHARDED],
    "fsdp, bfloat16": [FSDP, BFLOAT16],
    "fsdp, tables sharded, bfloat16": [FSDP, SHARDED, BFLOAT16],
    "fsdp, not tied": [FSDP, "tie=none"],
}


def config_in(mode, data):
    more = ["training.tokens_per_update=256", "decoder.num_layers=2"]
    return config_of(data, *more, *MODES[mode])


def count_all(path, out):
    """Run one of several processes; write the bytes that it holds and sends in every mode."""
    torch.set_num_threads(1)
    data = DataFolder.open(path)
    with processes.started("cpu") as process:
        found = {mode: count(config_in(mode, data), data, process) for mode in MODES}
    out.with_name(f"{out.name}-{process.rank}").write_text(json.dumps(found))


def count(config, data, process):
    """Bytes that a process holds, and sends in its second update."""
    learner = build_learner(config, untrained_model(config, data.vocabulary), process)
    stream = Stream(config, data.tokens("train"), process, Position(), config.batches.block)
    for _ in range(2):
        batches = [stream.next() for _ in range(accumulation(config, process))]
        with Counting(process.world_size) as counting:
            step.update(learner, batches)
    stream.close()
    params = list(learner.model.parameters())
    states = [s for p in params for s in learner.optimizers[0].state[p].values()]
    return {
        "weights": sum(_bytes(local_shard(p)) for p in params),
        "optimizer": sum(_bytes(local_shard(s)) for s in states),
        "sent": sum(counting.sent.values()),
    }


@pytest.fixture(scope="module")
def counted(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("counted") / "by"
    assert in_processes(2, count_all, word_data.path, out) == [0, 0]
    return [json.loads(out.with_name(f"by-{rank}").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize("mode", MODES)
def test_predicts_bytes_of_two_processes(mode, word_data, counted):
    config = config_in(mode, word_data)
    case = scale.Case("", config, 2, config.batches.tokens)
    both = [each[mode] for each in counted]
    memory = scale.memory(case)
    for part in ("weights", "optimizer"):  # the first process has the odd rows
        assert sum(each[part] for each in both) == 2 * memory[part]
    # FSDP pads odd sizes.
    assert both[0]["sent"] == pytest.approx(sum(scale.traffic(case).values()), rel=0.002)


def test_single_process_sends_nothing_and_holds_all_weights(word_data):
    config = config_of(word_data)
    case = scale.Case("", config, 1, config.batches.tokens)
    assert scale.traffic(case) == {}
    assert scale.memory(case)["weights"] == 4 * config.num_params()


def test_constants_reproduce_the_measurements():
    """Speed and peak memory of one H200 with 32,768 and 65,536 tokens per batch."""
    large = scale.cases()[0]
    small = replace(large, tokens=32_768)
    assert sum(scale.memory(large).values()) == pytest.approx(32.14e9, rel=0.05)
    assert sum(scale.memory(small).values()) == pytest.approx(17.59e9, rel=0.05)
    assert scale.tokens_per_second(large, scale.times(large).expected) == pytest.approx(
        347_001, rel=0.01
    )


@pytest.mark.slow
@pytest.mark.multi_process
def test_measures_speed_of_two_processes_and_their_link():
    small = ["batches.block=16", "batches.eval_block=16", "batches.tokens=64"]
    small += ["training.tokens_per_update=128", "decoder.num_layers=1"]
    first, second = scale._measured([small] * 2, together=True, steps=1)
    assert min(first, second) > 0
    assert scale._measured_link() > 1e6


def test_predictions_are_exact_on_an_ideal_machine(monkeypatch):
    """A machine on which only operations take time, all of them the same."""

    def measured(models, *, steps, together=False):
        configs = [scale.override(scale.from_name("tiny/ADP-T"), model) for model in models]
        rates = [1e9 / scale.operations_per_token(config) for config in configs]
        return [sum(rates) if together else rate for rate in rates]

    monkeypatch.setattr(scale, "_measured", measured)
    monkeypatch.setattr(scale, "_measured_link", lambda: 1e15)
    for each in scale.check():
        assert each.predicted == pytest.approx(each.measured, rel=1e-3)
