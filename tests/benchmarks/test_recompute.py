"""The benchmark of recomputation runs at toy size and counts what it says."""

import json

import pytest
import torch
from benchmark_scripts import FOLDER, load

from zipflm.config import TransformerDecoder

D, F, H = 16, 48, 2
RATES = {"dropout": 0.0, "relu_dropout": 0.0, "attention_dropout": 0.0}
CONFIG = TransformerDecoder(dim=D, ffn_dim=F, num_heads=H, **RATES)

# Numbers of the residual stream's width and of the feed-forward's; then those in float32: of every
# head the log-sum-exp, of every norm mean and deviation.
KEPT = {"none": (8 * D + F, H + 4), "attention": (4 * D + F, H + 2), "layer": (2 * D, H)}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return load("recompute")


@pytest.mark.parametrize("mode", KEPT)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_layer_keeps_what_was_derived(benchmark, mode, precision):
    numbers, always_float32 = KEPT[mode]
    expected = numbers * (4 if precision == "float32" else 2) + 4 * always_float32
    found = benchmark.kept_bytes(CONFIG, mode, torch.device("cpu"), precision)
    assert found == expected


def test_every_mode_is_measured(benchmark, tmp_path, capsys):
    target = tmp_path / "recompute.json"
    small = ["decoder.num_layers=1", "decoder.dropout=0", "training.dtype=float32"]
    sizes = ["--block", "16", "--tokens", "32", "--steps", "1", "--json", str(target)]
    benchmark.main(["--preset", "tiny/ADP-T", "--device", "cpu", *sizes, *small])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("cpu, torch") and title.endswith("tiny/ADP-T, blocks of 16")
    kept, updates = [json.loads(line) for line in lines[:3]], json.loads(target.read_text())["rows"]
    assert [row["recompute"] for row in kept] == list(KEPT)
    assert [row["recompute"] for row in updates[3:]] == list(KEPT)
    assert all(row["tokens_per_second"] > 0 for row in updates[3:])
