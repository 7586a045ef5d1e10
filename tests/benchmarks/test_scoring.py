"""The benchmark of scoring runs at toy size and counts what it says."""

import json

from benchmark_scripts import load


def test_all_three_rates_are_measured(capsys):
    benchmark = load("scoring")
    small = ["decoder.num_layers=1", "decoder.ffn_dim=32"]
    benchmark.main(
        ["--preset", "tiny/ADP-T", "--device", "cpu", "--lines", "9", "--rounds", "1", *small]
    )
    title, *_, last = capsys.readouterr().out.splitlines()
    assert title.startswith("CPU, torch") and "tiny/ADP-T" in title
    rates = json.loads(last)
    assert list(rates) == ["evaluate", "lm.score", "rows"] and min(rates.values()) > 0
