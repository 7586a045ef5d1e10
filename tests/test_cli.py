import subprocess
import sys

import pytest
from typer.testing import CliRunner

import zipflm.cli
from zipflm.studies.paper import PaperModel


def run(*arguments):
    return CliRunner().invoke(zipflm.cli.app, arguments)


def test_parameter_counts_match_the_paper():
    result = run("info", "--paper")
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if line.startswith("Table ")]
    assert len(rows) == 34 and all(row.rstrip().endswith("yes") for row in rows)
    assert "34 of 34 rows match the paper" in result.stdout
    for exact in ("246,933,504", "1,026,194,688", "476,758,016", "365,764,992", "340,198,400"):
        assert exact in result.stdout


@pytest.mark.parametrize(
    ("count", "figure", "matches"),
    [
        (246_950_000, "247.0", True),  # a half is rounded up
        (246_949_999, "247.0", False),
        (246_949_999, "246.9", True),
        (246_949_999, "247", True),
    ],
)
def test_counts_are_compared_at_the_precision_of_the_paper(count, figure, matches):
    assert PaperModel("Table 0", "made up", "tiny/ADP-T", figure).matches(count) is matches


def test_info_exits_with_1_on_a_mismatch(monkeypatch):
    wrong = PaperModel("Table 0", "made up", "wikitext-103/ADP-T", "247.0")
    monkeypatch.setattr("zipflm.studies.paper.MODELS", (wrong,))
    result = run("info", "--paper")
    assert result.exit_code == 1 and "NO" in result.stdout


def test_bad_input_exits_with_2_and_one_line():
    command = [sys.executable, "-m", "zipflm", "info", "tiny/ADP-T", "decoder.num_layer=1"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "did you mean decoder.num_layers?" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_version():
    assert run("--version").stdout.strip() == zipflm.__version__


def test_help_does_not_load_torch():
    code = "import sys, zipflm.cli; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


EVIL = "\x1b]0;owned\x07\x1b[2J"


def test_errors_are_escaped_and_shortened(monkeypatch, capsys):
    def fail(**_):
        raise ValueError("name=" + EVIL + "\n" + "x" * 99_999 + "; choose another")

    monkeypatch.setattr(zipflm.cli, "app", fail)
    with pytest.raises(SystemExit) as exit:
        zipflm.cli.main()
    output = capsys.readouterr().err
    assert exit.value.code == 2
    assert output.startswith("zipflm: name=\\x1b]0;owned\\x07\\x1b[2J\\nxxx")
    assert output.endswith("; choose another\n")
    assert len(output) < 2_100 and output.count("\n") == 1 and "\x1b" not in output
