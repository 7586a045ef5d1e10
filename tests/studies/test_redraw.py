"""Redrawing the report of a study."""

import json
import shutil

import pytest
from studies.study_runs import FakeTrainer, run_study

from zipflm.cli import app
from zipflm.studies.analyze import is_study, redraw


@pytest.fixture
def without_weights(whole_study, tmp_path):
    """A copy of a study without weights and reports."""
    ignored = shutil.ignore_patterns("weights.*", "report.*", "*.csv", "figures")
    return shutil.copytree(whole_study.out, tmp_path / "sent", ignore=ignored)


def test_redraw_reads_saved_scores(whole_study, without_weights, data, tmp_path):
    assert is_study(without_weights) and not is_study(whole_study.run_of("ADP-T"))
    redraw(without_weights, data, tmp_path / "drawn")
    before = json.loads((whole_study.out / "table.json").read_text())
    after = json.loads((tmp_path / "drawn" / "table.json").read_text())
    for name in ("title", "dataset", "protocol", "differences", "loss_by_word_frequency", "tried"):
        assert after[name] == before[name]
    for ours, theirs in zip(after["rows"], before["rows"], strict=True):
        assert ours["perplexity_test"] == theirs["perplexity_test"]
        assert ours["curve"] == theirs["curve"]
    assert (tmp_path / "drawn" / "report.html").is_file()


def test_report_command_redraws_a_study(without_weights, data, tmp_path, capsys):
    arguments = [str(without_weights), "--data", str(data), "--out", str(tmp_path / "drawn")]
    app(["report", *arguments], standalone_mode=False)
    assert "report.html" in capsys.readouterr().out
    app(["report", *arguments, "--json"], standalone_mode=False)
    table = json.loads((tmp_path / "drawn" / "table.json").read_text())
    assert json.loads(capsys.readouterr().out) == table
    with pytest.raises(ValueError, match="redrawn from its saved scores"):
        app(["report", *arguments, "--block", "32"], standalone_mode=False)


def test_redraws_an_interrupted_study(data, tmp_path, capsys):
    """Some of its members have no folder yet."""
    out = tmp_path / "study"
    trainer = FakeTrainer(stops_at="SM")
    assert run_study(data, out, trainer, factorizations=("SM", "ADP-T")).stopped
    drawn = tmp_path / "drawn"
    arguments = ["report", str(out), "--data", str(data), "--out", str(drawn)]
    assert not app(arguments, standalone_mode=False)
    assert "ADP-T: not trained" in capsys.readouterr().err
    assert (drawn / "report.md").read_text().startswith("# Unfinished: 0 of 2 models done")


def test_redraw_scores_members_without_saved_scores(whole_study, data, tmp_path):
    study = shutil.copytree(whole_study.out, tmp_path / "copy")
    (study / "members" / "ADP-T" / "seed-1" / "scores" / "test.npz").unlink()
    redrawn = redraw(study, data, tmp_path / "drawn")
    before = json.loads((study / "table.json").read_text())["rows"]
    assert [row.perplexity["test"].mean for row in redrawn.rows] == pytest.approx(
        [row["perplexity_test"] for row in before]
    )


def test_redraw_errors_name_the_damaged_file(without_weights, data, tmp_path):
    shutil.rmtree(without_weights / "members" / "ADP-T" / "seed-1")
    with pytest.raises(ValueError, match="seed-1: no checkpoints found"):
        redraw(without_weights, data, tmp_path / "b")
    (without_weights / "table.json").write_text('{"rows": [{"model": "SM"}]}')
    with pytest.raises(ValueError, match="table.json: damaged or written by another version"):
        redraw(without_weights, data, tmp_path / "c")
