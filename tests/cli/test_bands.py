"""`zipflm info --data`: suggested bands."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from zipflm.cli import app, main


def bands(*arguments):
    arguments = ["info", "--device", "cpu", "--data", *map(str, arguments)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_table_and_json_agree(word_data):
    table = bands(word_data.path, "--dim", 32)
    assert table.startswith("bands") and "\x1b" not in table
    assert "the paper's proportions" in table
    found = json.loads(bands(word_data.path, "--dim", 32, "--json"))
    cutoffs = ",".join(map(str, found["suggested"]["cutoffs"]))
    assert f"input.cutoffs={cutoffs} " in table
    counts = np.bincount(word_data.tokens("train").ids, minlength=len(word_data.vocabulary))
    for row in (found["suggested"], found["paper"]):
        parts = np.split(counts, row["cutoffs"])  # includes line ends and unknown words
        shares = [part.sum() / counts.sum() for part in parts]
        assert row["coverage"] == pytest.approx(shares)


def test_accepts_a_file_of_words_and_counts(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"word{rank} {1000 // rank}\n" for rank in range(1, 301)))
    assert sum(json.loads(bands(path, "--dim", 64, "--json"))["suggested"]["sizes"]) == 304


def test_bad_input_exits_with_2_and_one_line(tmp_path, word_data, monkeypatch, capsys):
    for arguments, message in [
        ((tmp_path / "none",), "not a data folder"),
        ((word_data.path, "--dim", "0"), "--dim 0"),
    ]:
        monkeypatch.setattr("sys.argv", ["zipflm", "info", "--data", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        output = capsys.readouterr()
        assert (exit.value.code, output.out) == (2, "")
        assert message in output.err and len(output.err.splitlines()) == 1
