"""The benchmark of the output layer's operation runs at toy size, on every band."""

import json

from benchmark_scripts import load


def test_every_band_is_measured_both_ways(capsys, tmp_path):
    benchmark = load("linear_nll")
    path = tmp_path / "numbers.json"
    small = ["--tokens", "8", "--shrink", "200", "--repeats", "2"]
    benchmark.main(["--device", "cpu", *small, "--json", str(path)])
    bands = json.loads(path.read_text())["bands"]
    assert list(bands) == list(benchmark.BANDS)
    for runs in bands.values():
        assert runs["plain"]["ms"] > 0 and runs["ours"]["ms"] > 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line[:8].strip() for line in lines] == list(bands)
