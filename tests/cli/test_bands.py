"""`zipflm info --data` as a user meets it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from zipflm.cli import main


def zipflm(*arguments):
    command = [sys.executable, "-m", "zipflm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_plain_table_when_piped_and_numbers_for_programs(word_data):
    table = zipflm("info", "--data", word_data.path, "--dim", 32, "--device", "cpu")
    assert table.returncode == 0, table.stderr
    assert table.stdout.startswith("bands") and "\x1b" not in table.stdout
    assert "the paper's proportions" in table.stdout
    numbers = zipflm("info", "--data", word_data.path, "--dim", 32, "--device", "cpu", "--json")
    cutoffs = ",".join(map(str, json.loads(numbers.stdout)["suggested"]["cutoffs"]))
    assert f"input.cutoffs={cutoffs} " in table.stdout
    counts = np.bincount(word_data.tokens("train").ids, minlength=len(word_data.vocabulary))
    for row in (json.loads(numbers.stdout)[name] for name in ("suggested", "paper")):
        bands = np.split(counts, row["cutoffs"])  # line ends and unknown words included
        shares = [band.sum() / counts.sum() for band in bands]
        assert row["coverage"] == pytest.approx(shares)


def test_a_file_of_words_and_counts_will_do(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"word{rank} {1000 // rank}\n" for rank in range(1, 301)))
    found = zipflm("info", "--data", path, "--dim", 64, "--device", "cpu", "--json")
    assert sum(json.loads(found.stdout)["suggested"]["sizes"]) == 304


def test_bad_input_is_one_line_and_status_2(tmp_path, word_data, monkeypatch, capsys):
    for arguments, message in [
        ((tmp_path / "none",), "not a data folder"),
        ((word_data.path, "--budget", "much"), "much: write a number"),
        ((word_data.path, "--budget", "10"), "--budget 10"),
        ((word_data.path, "--tails", "9"), "--tails 9"),
        ((word_data.path, "--dim", "0"), "--dim 0"),
    ]:
        monkeypatch.setattr("sys.argv", ["zipflm", "info", "--data", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        said = capsys.readouterr()
        assert (exit.value.code, said.out) == (2, "")
        assert message in said.err and len(said.err.splitlines()) == 1
