"""The benchmark of recomputation runs at toy size and counts the kept bytes correctly."""

import json

import pytest
import torch
from benchmark_scripts import load

from zipflm.config import TransformerDecoder

D, F, H = 16, 48, 2
RATES = {"dropout": 0.0, "relu_dropout": 0.0, "attention_dropout": 0.0}
CONFIG = TransformerDecoder(dim=D, ffn_dim=F, num_heads=H, **RATES)

# Kept values per token: in the precision of the run, then in float32 (a log-sum-exp per head, mean
# and deviation per norm).
KEPT = {"none": (8 * D + F, H + 4), "attention": (4 * D + F, H + 2), "layer": (2 * D, H)}


@pytest.fixture
def benchmark():
    return load("recompute")


@pytest.mark.parametrize("mode", KEPT)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_kept_bytes_match_expected_sizes(benchmark, mode, precision):
    numbers, always_float32 = KEPT[mode]
    expected = numbers * (4 if precision == "float32" else 2) + 4 * always_float32
    found = benchmark.kept_bytes(CONFIG, mode, torch.device("cpu"), precision)
    assert found == expected


def test_measures_every_mode(benchmark, capsys):
    small = ["decoder.num_layers=1", "decoder.dropout=0", "training.dtype=float32"]
    sizes = ["--block", "16", "--tokens", "32", "--steps", "1"]
    benchmark.main(["--preset", "tiny/ADP-T", "--device", "cpu", *sizes, *small])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.endswith("tiny/ADP-T, blocks of 16")
    rows = [json.loads(line) for line in lines]
    assert [row["recompute"] for row in rows] == 2 * list(KEPT)
    assert all(row["kept_bytes_per_token_and_layer"] > 0 for row in rows[:3])
    assert all(row["tokens_per_second"] > 0 for row in rows[3:])
