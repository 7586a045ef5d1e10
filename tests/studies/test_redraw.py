"""Redrawing the report of a study without its weights."""

import json
import shutil

import pytest
from studies.study_runs import SHORT, FakeTrainer, request_for, run_study

from zipflm.cli import app
from zipflm.studies.analyze import is_study, redraw
from zipflm.studies.compare import compare


@pytest.fixture
def without_weights(whole_study, tmp_path):
    """A copy of a study without checkpoints and reports."""
    ignored = shutil.ignore_patterns("checkpoints", "report.*", "*.csv", "figures")
    return shutil.copytree(whole_study.out, tmp_path / "sent", ignore=ignored)


def test_redraw_needs_no_weights(whole_study, without_weights, data, tmp_path):
    assert is_study(without_weights) and not is_study(whole_study.run_of("ADP-T"))
    redraw([without_weights], data, tmp_path / "drawn")
    before = json.loads((whole_study.out / "table.json").read_text())
    after = json.loads((tmp_path / "drawn" / "table.json").read_text())
    for name in ("title", "dataset", "protocol", "differences", "loss_by_word_frequency", "tried"):
        assert after[name] == before[name]
    for ours, theirs in zip(after["rows"], before["rows"], strict=True):
        assert ours["perplexity_test"] == theirs["perplexity_test"]
        assert ours["curve"] == theirs["curve"]
    assert (tmp_path / "drawn" / "report.html").is_file()


def test_combines_the_seeds_of_studies(data, tmp_path):
    def study(seed, *overrides, seeds=1):
        out = tmp_path / f"{seed}-{len(overrides)}-{seeds}"
        overrides = (*SHORT, f"training.seed={seed}", *overrides)
        models = ("SM", "ADP-T")
        compare(request_for(data, out, factorizations=models, overrides=overrides, seeds=seeds))
        return out

    first, second, both = study(1), study(2), study(1, seeds=2)
    redraw([first, second], data, tmp_path / "combined")
    combined, together = (
        json.loads((out / "table.json").read_text()) for out in (tmp_path / "combined", both)
    )
    assert combined["protocol"]["seeds"] == together["protocol"]["seeds"] == "1, 2"
    assert combined["differences"] == together["differences"]
    for ours, theirs in zip(combined["rows"], together["rows"], strict=True):
        assert ours["perplexity_test"] == theirs["perplexity_test"]
    with pytest.raises(ValueError, match="SM/seed-1: same model and seed as"):
        redraw([first, both], data, tmp_path / "twice")
    with pytest.raises(ValueError, match="SM/seed-2: training.clip_norm=3.0, but .* in .*seed-1"):
        redraw([first, study(2, "training.clip_norm=3")], data, tmp_path / "mixed")


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


def test_redraw_errors_name_the_damaged_file(without_weights, data, tmp_path):
    member = without_weights / "members" / "ADP-T" / "seed-1"
    kept = (member / "scores" / "test.npz").read_bytes()
    (member / "scores" / "test.npz").write_bytes(kept[:100])
    with pytest.raises(ValueError, match="test.npz: cannot read these scores"):
        redraw([without_weights], data, tmp_path / "a")
    shutil.rmtree(member)
    with pytest.raises(ValueError, match="seed-1: this run of the study is missing"):
        redraw([without_weights], data, tmp_path / "b")
    (without_weights / "table.json").write_text('{"rows": [{"model": "SM"}]}')
    with pytest.raises(ValueError, match="table.json: damaged or written by another version"):
        redraw([without_weights], data, tmp_path / "c")
