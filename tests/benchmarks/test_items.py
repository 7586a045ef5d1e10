"""The benchmark of next-item models runs at toy size, for every model."""

import io
import json
from contextlib import redirect_stdout

from benchmark_scripts import load

SMALL = ["--items", "2000", "--dim", "32", "--users", "2", "--length", "4", "--repeats", "1"]


def test_measures_every_model(capsys, monkeypatch):
    benchmark = load("items")

    def measure_here(name, arguments):
        with redirect_stdout(io.StringIO()) as output:
            benchmark.main([*arguments, "--only", name])
        return json.loads(output.getvalue())

    monkeypatch.setattr(benchmark, "_measure_in_process", measure_here)
    benchmark.main(["--device", "cpu", *SMALL])
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert "2,000 items, 32 wide, 8 predictions per step" in first
    assert [row[:12].strip() for row in rows] == list(benchmark.MODELS)
    parameters = [int(row[12:].split()[0].replace(",", "")) for row in rows]
    assert parameters[0] > parameters[1] > parameters[2] > 0


def test_measures_in_a_separate_process():
    numbers = load("items")._measure_in_process("pair", ["--device", "cpu", *SMALL])
    assert numbers.keys() == {"parameters", "ms", "peak_gb"}
    assert numbers["parameters"] > 0 and numbers["ms"] > 0
