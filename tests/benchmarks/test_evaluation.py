"""The benchmark of evaluation runs at toy size and counts what it says."""

import json

from benchmark_scripts import load


def test_both_rates_are_measured_in_every_precision(capsys):
    benchmark = load("evaluation")
    sizes = ["--block", "32", "--context", "24", "--tokens", "100", "--batch-tokens", "64"]
    small = ["decoder.num_layers=1"]
    benchmark.main(["--preset", "tiny/ADP-T", "--device", "cpu", *sizes, *small])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("cpu, torch") and title.endswith("tiny/ADP-T")
    results = [json.loads(line) for line in lines]
    assert [result["precision"] for result in results] == ["float32", "bfloat16"]
    for result in results:
        rates = result["evaluation_tokens_per_s"], result["training_forward_tokens_per_s"]
        assert min(rates) > 0 and result["ratio"] > 0
