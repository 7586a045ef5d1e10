"""The benchmark of a training step on a CPU runs at toy size; both sides give the same results."""

import json

import pytest
import torch
from benchmark_scripts import load

from zipflm import LanguageModel
from zipflm.presets.recipes import resolve

SMALL = ["decoder.num_layers=1", "decoder.ffn_dim=32"]


@pytest.fixture
def benchmark():
    return load("published_step")


def test_measures_both_steps(benchmark, capsys):
    benchmark.main(["--threads", "1", "--rounds", "1", "--rows", "2", "--block", "8", *SMALL])
    found = json.loads(capsys.readouterr().out)
    assert found["ratio of the fastest"] == found["ratio of the median"] > 0


def test_baseline_gives_the_same_loss_and_gradients(benchmark):
    config = resolve("demo/ADP-T", "paper", [*benchmark.MODEL, *SMALL], 20_000)
    model = LanguageModel(config).eval()
    words, targets = torch.randint(4, 20_000, (2, 2, 8))
    results = []
    for score in (model.nll_sum, benchmark.PublishedStyle(model).eval()):
        model.zero_grad()
        loss = score(words, targets)
        loss.backward()
        # The baseline has no gradient for a band without words.
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        results.append([loss, *grads])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
