"""The benchmark of `prepare` runs at toy size; the loop it compares with does the same work."""

import json

import pytest
from benchmark_scripts import load

pytestmark = pytest.mark.slow  # every case runs in a process of its own


def test_the_plain_loop_and_prepare_count_the_same_tokens(tmp_path):
    text, path = tmp_path / "text.txt", tmp_path / "numbers.json"
    text.write_text("the cat sat on the mat\nthe dog ran\n" * 40)
    load("prepare").main([str(text), "--repeats", "1", "--json", str(path)])
    results = json.loads(path.read_text())
    (cases,) = [value for title, value in results.items() if title.startswith("1 file(s)")]
    assert list(cases) == ["plain loop", "prepare, 1 process", "prepare, 2 processes"]
    assert {case["tokens"] for case in cases.values()} == {40 * (7 + 4)}
    assert cases["plain loop"]["speedup"] == 1
    for mode in ("none", "complete", "sentence"):
        assert results["batches"][f"{mode}_tokens_per_second"] > 0
