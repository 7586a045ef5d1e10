"""The benchmark of decoding runs at toy size."""

import json

import pytest
from benchmark_scripts import load

SIZES = ["--device", "cpu", "--prompt", "3", "--words", "2", "--rounds", "1", "--batch", "1", "2"]


def results(capsys):
    title, *lines = capsys.readouterr().out.splitlines()
    return title, [json.loads(line) for line in lines]


@pytest.mark.parametrize("model", ["tiny/ADP-T", "tiny/SM"])
def test_every_choice_is_measured_at_every_batch(model, capsys):
    benchmark = load("decoding")
    benchmark.main([*SIZES, "--preset", model, "decoder.num_layers=1"])
    title, lines = results(capsys)
    assert f"{model}, 1 layers, random weights" in title
    assert [line["batch"] for line in lines] == [1] * 4 + [2] * 4
    assert [line["choice"] for line in lines[:4]] == list(benchmark.CHOICES)
    for line in lines:
        assert min(line["words_per_s"], line["output_ms"], line["before_ratio"]) > 0


def test_a_trained_run_is_measured_with_its_own_weights(imported_run, capsys):
    load("decoding").main([*SIZES, "--run", str(imported_run), "--choices", "greedy"])
    title, lines = results(capsys)
    assert "random" not in title
    assert len(lines) == 2
