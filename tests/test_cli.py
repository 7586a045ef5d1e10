import subprocess
import sys

import pytest
from typer.testing import CliRunner

import zipflm.cli
import zipflm.sizes
from zipflm.analysis.paper import PaperModel


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "zipflm", *arguments], capture_output=True, text=True, timeout=120
    )


def test_params_prints_every_row_of_the_paper_and_all_match():
    result = run("params")
    assert result.returncode == 0
    rows = [line for line in result.stdout.splitlines() if line.startswith("Table ")]
    assert len(rows) == 34 and all(row.rstrip().endswith("yes") for row in rows)
    assert "34 of 34 rows match the paper" in result.stdout
    for exact in ("246,933,504", "1,026,194,688", "476,758,016", "365,764,992", "340,198,400"):
        assert exact in result.stdout


def test_params_exits_1_if_a_row_is_off(monkeypatch):
    wrong = PaperModel("Table 0", "made up", "wikitext-103/ADP-T", "247.0")
    monkeypatch.setattr(zipflm.sizes, "MODELS", (wrong,))
    result = CliRunner().invoke(zipflm.cli.app, ["params"])
    assert result.exit_code == 1
    assert "NO" in result.stdout


def test_params_breaks_one_model_down():
    result = run("params", "wikitext-103/ADP-T", "decoder.num_layers=8")
    assert result.returncode == 0
    assert "input.embedding.band2" in result.stdout
    assert "100,769,792" in result.stdout  # eight layers
    assert "146,163,712" in result.stdout  # the whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("params", "tiny/ADPT"), "factorization='ADPT'"),
        (("params", "tiny/ADP-T", "decoder.num_layer=1"), "did you mean decoder.num_layers?"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_version():
    assert run("--version").stdout.strip() == zipflm.__version__


def test_help_needs_no_torch():
    code = "import sys, zipflm.cli; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
