"""The benchmark of memories runs at toy size and counts what it says."""

import json

from benchmark_scripts import load


def test_measures_a_cache_and_a_search(capsys):
    sizes = ["--block", "32", "--tokens", "200", "--window", "50", "--repeats", "1"]
    search = ["--keys", "300", "--queries", "4", "--neighbours", "10"]
    load("memory").main(["--preset", "tiny/ADP-T", *sizes, *search, "decoder.num_layers=1"])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("cpu, torch") and title.endswith("tiny/ADP-T")
    cache, found = map(json.loads, lines)
    assert cache["window"] == 50 and cache["ratio"] > 0
    assert found["keys"] == 300 and found["k"] == 10 and found["ms_per_query"] > 0
