"""The benchmark of `prepare` runs at toy size, and its baseline does the same work."""

import json

import pytest
from benchmark_scripts import load

pytestmark = pytest.mark.slow  # some cases start a process

MEASURED = ("plain", "batches")
"""Cases to measure in their own process; others run in this one to save time."""


def test_plain_loop_and_prepare_count_the_same_tokens(tmp_path, monkeypatch):
    script = load("prepare")
    measure = script.measure

    def sometimes_measure(case, names, processes):
        if case in MEASURED and names == [str(text)]:
            return measure(case, names, processes)
        return script.run_case(case, names, processes)

    monkeypatch.setattr(script, "measure", sometimes_measure)
    text, path = tmp_path / "text.txt", tmp_path / "numbers.json"
    text.write_text("the cat sat on the mat\nthe dog ran.\n" * 40)
    sizes = ["--repeats", "1", "--plan-tokens", "100000"]
    script.main([str(text), *sizes, "--json", str(path)])
    results = json.loads(path.read_text())
    (cases,) = [value for title, value in results.items() if title.startswith("1 file(s)")]
    rules = ["prepare", "prepare words", "prepare wikitext"]
    one, two = [f"{rule}, 1 process" for rule in rules], [f"{rule}, 2 processes" for rule in rules]
    assert list(cases) == ["plain loop", *one, *two]
    for name, case in cases.items():
        splits_off = "words" in name or "wikitext" in name
        assert case["tokens"] == 40 * (7 + (5 if splits_off else 4))
    assert cases["plain loop"]["speedup"] == 1
    assert cases["prepare, 2 processes"]["of_whitespace_seconds"] == 1
    assert cases["prepare words, 1 process"]["of_whitespace_cpu_seconds"] > 0
    for mode in ("none", "complete", "sentence"):
        assert results["plans"][f"{mode}_plan_cpu_seconds"] > 0
        assert results["batches"][f"{mode}_tokens_per_second"] > 0
