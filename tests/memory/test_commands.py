"""The memory commands, and memories in comparisons."""

import json

import pytest
from training_runs import SMALL

import zipflm
import zipflm.cli
from zipflm.studies.redraw import redraw


def zipflm_command(monkeypatch, capsys, *arguments):
    """Exit status, stdout and stderr."""
    monkeypatch.setattr("sys.argv", ["zipflm", *map(str, arguments)])
    status = 0
    try:
        zipflm.cli.main()
    except SystemExit as ended:
        status = ended.code or 0
    return status, *capsys.readouterr()


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    short = [*SMALL, "training.max_updates=4"]
    return zipflm.train("tiny/ADP-T", short, data=data, out=out, device="cpu").path


def test_builds_tunes_and_evaluates(run, data, tmp_path, monkeypatch, capsys):
    store, figure = tmp_path / "store", tmp_path / "windows.png"
    of_run = (run, "--data", data.path)
    status, out, _ = zipflm_command(
        monkeypatch, capsys, "memory", "build", *of_run, "--out", store, "--max-keys", "0.5k"
    )
    assert (status, out) == (0, f"{store}: 500 keys of 16 numbers, float16\n")
    names = ("--memory", store, "--memory", "cache")
    status, out, _ = zipflm_command(
        monkeypatch, capsys, "memory", "tune", *of_run, *names, "--figure", figure, "--json"
    )
    assert status == 0 and figure.stat().st_size > 1000
    tuned = json.loads(out)
    status, out, _ = zipflm_command(
        monkeypatch, capsys, "evaluate", *of_run, "--split", "valid", *names, "--json"
    )
    found = json.loads(out)
    assert found["memory"] == [each["name"] for each in tuned["chosen"]]
    assert found["perplexity"] == pytest.approx(tuned["chosen"][-1]["perplexity"], rel=1e-5)
    # In Python, paths can be given as such.
    scores = zipflm.evaluate(run, data=data.path, split="valid", memory=[store, "cache"]).scores
    assert scores.perplexity == pytest.approx(found["perplexity"], rel=1e-5)
    assert zipflm.load(run, memory=store).engine.memories.names == (found["memory"][0],)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["evaluate", "--split", "valid", "--memory", "cache:x"],
            "--memory cache:x: window='x': expected",
        ),
        (["evaluate", "--split", "valid", "--memory", "nowhere"], "--memory nowhere: not a store"),
        (
            ["evaluate", "--split", "valid", *["--memory", "cache"] * 2],
            "--memory cache:200",
        ),
        (["memory", "tune", "--split", "test"], "--split test: tuning on test"),
        (["memory", "tune", "--figure", "a.xyz"], "a.xyz: unsupported file type; use .png"),
        (
            ["memory", "tune", "--memory", "cache:9", "--figure", "a.png"],
            "--figure: needs a cache without a window",
        ),
        (["memory", "build", "--out", "x", "--max-keys", "0"], "--max-keys 0: must be at least 1"),
        (["memory", "build", "--out", "x", "--dtype", "int8"], "--dtype 'int8': choose from"),
        (["memory", "bild"], "No such command 'bild'. Did you mean 'build'?"),
    ],
)
def test_errors_are_one_line(run, data, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    if "bild" not in arguments:
        arguments = [*arguments, run, "--data", data.path]
    status, out, error = zipflm_command(monkeypatch, capsys, *arguments)
    assert status == 2 and not out
    assert error.startswith(f"zipflm: {message}") and error.count("\n") == 1


def test_compare_scores_members_with_and_without_a_cache(data, tmp_path):
    changes = [*SMALL, "training.max_updates=4"]
    request = {"data": data, "preset": "tiny", "factorizations": ["ADP-T"], "device": "cpu"}
    with pytest.raises(ValueError, match="memory=store: only a cache"):
        zipflm.compare(changes, **request, out=tmp_path / "none", memory=["store"])
    with pytest.raises(ValueError, match="memory=cache:2000: given twice"):
        zipflm.compare(changes, **request, out=tmp_path / "none", memory=["cache", "cache:2000"])
    out = tmp_path / "study"
    study = zipflm.compare(changes, **request, out=out, memory=["cache:30"]).study
    assert [row.label for row in study.rows] == ["ADP-T", "ADP-T + cache:30"]
    alone, with_cache = study.rows
    assert alone.perplexity != with_cache.perplexity
    assert {*study.word_bins[0].loss} == {"ADP-T", "ADP-T + cache:30"}
    again = zipflm.compare(changes, **request, out=out, memory=["cache:30"]).study
    assert [row.perplexity for row in again.rows] == [row.perplexity for row in study.rows]
    drawn = redraw([out], data.path, tmp_path / "drawn")
    assert [row.perplexity for row in drawn.rows] == [row.perplexity for row in study.rows]
    # Saved scores are not used after other settings were tuned.
    zipflm.tune_memory(study.rows[0].first.run, data=data.path, memory="cache")
    alone, tuned = zipflm.compare(changes, **request, out=out, memory=["cache:30"]).study.rows
    assert alone.perplexity == study.rows[0].perplexity
    assert tuned.perplexity["valid"].mean < with_cache.perplexity["valid"].mean
