"""The benchmark of sparse gradients runs at toy size, and the time does not grow with the rows."""

import json

import pytest
import torch
from benchmark_scripts import load

pytestmark = pytest.mark.usefixtures("one_thread")


def test_both_kinds_of_gradient_are_measured(tmp_path, capsys):
    target = tmp_path / "rows.json"
    sizes = ["--rows", "50", "100", "--dim", "4", "--tokens", "16", "--rounds", "1"]
    load("sparse_rows").main(["--device", "cpu", *sizes, "--json", str(target)])
    found = json.loads(target.read_text())
    assert len(found["rows"]) == 4 == len(capsys.readouterr().out.splitlines()) - 1
    assert all(row["ms"] > 0 for row in found["rows"])
    assert set(found["ratios"]) == {"dense", "sparse"}


def test_an_update_does_not_cost_the_rows_that_it_leaves_alone():
    """With forty times the rows dense gradients take many times as long, sparse ones as long as
    before, give or take what a busy machine adds."""
    benchmark = load("sparse_rows")
    ratios = benchmark.measure([20_000, 800_000], 16, 256, 5, torch.device("cpu"))["ratios"]
    assert ratios["sparse"] < ratios["dense"] / 2
