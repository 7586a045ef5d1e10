"""The benchmark of training next to busy processes runs at toy size."""

from benchmark_scripts import load
from small_data import make_folder


def test_every_number_is_there(tmp_path, capsys):
    data = make_folder(tmp_path, "data")
    small = ["training.max_updates=10", "input.cutoffs=20", "output.cutoffs=20"]
    small += ["training.tokens_per_update=128", "batches.tokens=128"]
    options = ["--data", str(data.path), "--presets", "tiny/ADP-T", "--settings", "zipflm"]
    options += ["--neighbours", "1"]
    load("busy_machine").main([*options, "--", *small])
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:2] == ["tiny/ADP-T", "zipflm"]
    assert int(row[2].replace(",", "")) > 0 and len(row) == 3
