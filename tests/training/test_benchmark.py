"""The benchmark of a training step runs and measures what it says."""

import importlib.util
from pathlib import Path

import pytest
import torch

from zipflm.overrides import override
from zipflm.presets import preset
from zipflm.training.distributed import Process

PATH = Path(__file__).parents[2] / "benchmarks" / "training_step.py"


def test_shares_add_up_and_every_number_is_there():
    spec = importlib.util.spec_from_file_location("training_step", PATH)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    small = ["decoder.num_layers=1", "batches.tokens=256", "training.tokens_per_update=512"]
    config = override(preset("tiny", "ADP-T"), small)
    result = benchmark.measure(config, Process(0, 1, torch.device("cpu")), steps=2)
    assert sum(result["shares"].values()) == pytest.approx(1)
    assert list(result["shares"]) == ["data", "forward", "backward", "update"]
    assert result["tokens_per_second"] > 0 and result["peak_memory_bytes"] > 0
    assert 0 <= result["data_share"] < 1
