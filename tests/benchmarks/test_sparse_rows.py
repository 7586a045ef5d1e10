"""The benchmark of sparse gradients runs at toy size."""

import json

import pytest
import torch
from benchmark_scripts import load

pytestmark = pytest.mark.usefixtures("one_thread")


def test_measures_dense_and_sparse_gradients(tmp_path, capsys):
    target = tmp_path / "rows.json"
    sizes = ["--rows", "50", "100", "--dim", "4", "--tokens", "16", "--rounds", "1"]
    load("sparse_rows").main(["--device", "cpu", *sizes, "--json", str(target)])
    found = json.loads(target.read_text())
    assert len(found["rows"]) == 4 == len(capsys.readouterr().out.splitlines()) - 1
    assert all(row["ms"] > 0 for row in found["rows"])
    assert set(found["ratios"]) == {"dense", "sparse"}


def test_time_of_sparse_updates_does_not_grow_with_the_table():
    benchmark = load("sparse_rows")
    ratios = benchmark.measure([20_000, 800_000], 16, 256, 5, torch.device("cpu"))["ratios"]
    assert ratios["sparse"] < ratios["dense"] / 2
