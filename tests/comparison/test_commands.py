"""`compare` and `analyse` on the command line; every command of the README at toy size."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from comparison.studies import SHORT
from typer.testing import CliRunner

from zipflm.cli import app

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## Comparing factorizations\n")[1].split("\n## ")[0]
COMMANDS = re.findall(r"^zipflm ((?:compare|analyse) .*)$", SECTION, re.M)


@pytest.fixture(scope="module")
def place(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README's commands expect: data/words and two runs."""
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(data, place / "data" / "words")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("zipflm.analysis.report.save_figures", lambda study, folder: [])
        options = "--data data/words --preset tiny --out first --factorizations ADP-T,SM"
        result = CliRunner().invoke(app, ["compare", *options.split(), "--device", "cpu", *SHORT])
        assert result.exit_code == 0, result.output
        for name, member in (("a", "ADP-T"), ("b", "SM")):
            shutil.copytree(f"first/members/{member}/seed-1", f"runs/{name}")
    return place


def toy_size(command: str) -> list[str]:
    """The same command on a vocabulary of forty words and with three updates."""
    for old, new in (
        ("wikitext-103", "tiny"),
        ("wikitext-2", "tiny"),
        ("5k/155k/100k,20k/140k/100k", "4/8/20,8/24"),
        ("0,256,480", "0,4,8"),
        ("--seeds 3", "--seeds 2"),
        ("decoder.num_layers=1", ""),
    ):
        command = command.replace(old, new)
    parts = [*shlex.split(command), "--device", "cpu"]
    return parts + (list(SHORT) if parts[0] == "compare" else [])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readmes_commands_run(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    result = CliRunner().invoke(app, toy_size(command), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    out = Path(shlex.split(command)[shlex.split(command).index("--out") + 1])
    assert f"report: {out / 'report.html'}" in result.output
    assert (out / "report.html").is_file() and (out / "table.csv").is_file()


def test_the_readme_shows_every_kind_of_study() -> None:
    assert len(COMMANDS) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("analyse runs/a --context-sizes 0,x", "--context-sizes 0,x: write numbers"),
        ("analyse runs/a runs/b --bands 4/8", "start from one run"),
        ("analyse runs/none", "runs/none"),
        ("analyse runs/a --bands 4/8 --seeds 0", "--seeds 0: must be at least 1"),
        ("analyse runs/a --context-sizes 0,16", "--context-sizes 16: .* give 0 to 15"),
        ("compare --preset tiny --factorizations ADPT", "choose from SM"),
        ("compare --preset tiny --factorizations ,", "name at least one"),
    ],
)
def test_mistakes_are_told(
    arguments: str, message: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    command = [*arguments.split(), "--data", "data/words", "--out", "x"]
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, command, catch_exceptions=False)
