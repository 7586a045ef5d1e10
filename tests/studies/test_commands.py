"""`compare` and `report` on the command line."""

import shutil
from pathlib import Path

import pytest
from studies.example_study import study as example_study
from studies.study_runs import SHORT, plans_for
from typer.testing import CliRunner

from zipflm.cli import app, main
from zipflm.studies.compare import FinishedStudy
from zipflm.training import throughput

COMMANDS = [
    "compare --data data/words --preset tiny --recipe modern --out study",
    "compare --data data/words --preset tiny --out small --factorizations ADP-T,SM --seeds 2",
    "compare --data data/words --preset tiny --out bands --bands 4/8/20,8/24",
    "compare --data data/words --preset tiny --out tails --factorizations ADP --tail-dropout 0,0.2",
    "report runs/a runs/b --data data/words --out report",
    "report runs/a --data data/words --out contexts --context-sizes 0,4,8",
]


@pytest.fixture(scope="module")
def place(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/words and two runs."""
    place = tmp_path_factory.mktemp("readme")
    shutil.copytree(data, place / "data" / "words")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("zipflm.studies.report.save_figures", lambda study, folder: [])
        options = "--data data/words --preset tiny --out first --factorizations ADP-T,SM"
        result = CliRunner().invoke(app, ["compare", *options.split(), "--device", "cpu", *SHORT])
        assert result.exit_code == 0, result.output
        for name, member in (("a", "ADP-T"), ("b", "SM")):
            shutil.copytree(f"first/members/{member}/seed-1", f"runs/{name}")
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_write_a_report(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    words = [*command.split(), "--device", "cpu"]
    words += SHORT if words[0] == "compare" else []
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    out = Path(words[words.index("--out") + 1])
    assert f"report: {out / 'report.html'}" in result.output
    assert (out / "report.html").is_file() and (out / "table.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("report runs/a --context-sizes 0,x", "--context-sizes 0,x: write numbers"),
        ("report runs/none", "runs/none"),
        ("report runs/a --context-sizes 0,16", "context=16: must be below block=16"),
        ("compare --preset tiny --tail-dropout 0.1 --tail-dropout x", "--tail-dropout 0.1,x"),
    ],
)
def test_command_errors(arguments, message, place, monkeypatch):
    monkeypatch.chdir(place)
    command = [*arguments.split(), "--data", "data/words", "--out", "x"]
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, command, catch_exceptions=False)


@pytest.mark.parametrize("out", ["runs/a", "data/words"])
def test_report_does_not_overwrite_runs_or_data(out, place, monkeypatch):
    monkeypatch.chdir(place)
    before = sorted(Path(out).iterdir())
    with pytest.raises(ValueError, match=f"--out {out}: already contains"):
        command = ["report", "runs/a", "--data", "data/words", "--out", out]
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert sorted(Path(out).iterdir()) == before


def conclude(outcome, monkeypatch, capsys):
    """Exit status, stdout and stderr of a study with this outcome."""
    monkeypatch.setattr("zipflm.studies.compare.compare", lambda *_, **__: outcome)
    command = ["zipflm", "compare", "--data", "x", "--preset", "tiny", "--out", "y"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as exit:
        main()
    captured = capsys.readouterr()
    return int(exit.value.code or 0), captured.out, captured.err


def test_exit_status(monkeypatch, capsys):
    page = Path("report.html")
    whole, broken = example_study(), example_study(broken="SM")
    status, out, err = conclude(FinishedStudy(whole, page, False), monkeypatch, capsys)
    assert (status, err) == (0, "") and "report: report.html" in out
    status, out, err = conclude(FinishedStudy(broken, None, False), monkeypatch, capsys)
    assert status == 1 and "report: " not in out
    assert err == "zipflm: failed: SM: diverged: <loss> nan\n"
    stopped = FinishedStudy(broken, page, stopped=True)
    status, out, err = conclude(stopped, monkeypatch, capsys)
    assert (status, err) == (130, "") and "run the same command again" in out
    monkeypatch.setenv("RANK", "1")
    assert conclude(stopped, monkeypatch, capsys) == (130, "", "")


def dry_run(data, out, *options):
    arguments = ["--data", data, "--preset", "tiny", "--out", out, "--device", "cpu", "--dry-run"]
    runner = CliRunner()
    result = runner.invoke(app, ["compare", *map(str, arguments), *options], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_dry_run_shows_sizes_and_times(data, tmp_path, monkeypatch):
    monkeypatch.setattr("zipflm.training.throughput.cpu_speed", lambda: 4e9)
    output = dry_run(
        data, tmp_path / "study", "--factorizations", "SM,ADP-T", "--seeds", "2", *SHORT
    )
    plans = plans_for(data, factorizations=("SM", "ADP-T"), seeds=2, overrides=SHORT)
    for plan, line in zip(plans, output.splitlines()[1:], strict=False):
        operations = throughput.flops_left(plan.config, plan.data.vocabulary.counts)
        name = plan.label if plan.seed == 1 else f"{plan.label} seed {plan.seed}"
        params = f"{plan.config.num_params():,}"
        assert line.split() == [
            *name.split(),
            params,
            "3",
            "0",
            "64",
            f"{operations / 1e9:.1f}",
            "s",
        ]
    assert "4 runs" in output and list(tmp_path.iterdir()) == []


def test_dry_run_has_no_json(data, tmp_path):
    with pytest.raises(ValueError, match="--json: not with --dry-run"):
        dry_run(data, tmp_path, "--json")


def test_dry_run_with_grid_and_equal_seconds(data, tmp_path, monkeypatch):
    monkeypatch.setattr("zipflm.training.throughput.cpu_speed", lambda: 4e9)
    options = ("--grid", "decoder.dropout=0,0.1", "--seeds", "2", "--equal", "seconds")
    output = dry_run(data, tmp_path, "--factorizations", "SM,ADP-T", *options)
    assert "6 runs" in output and "SM dropout=0.1" in output
    seconds = [float(line.split()[-2]) for line in output.splitlines()[1:-1]]
    assert seconds == pytest.approx([seconds[0]] * 6, rel=0.01)  # a whole number of updates
