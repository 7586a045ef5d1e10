"""A study's report drawn again from what it keeps, on a machine that need not have its weights."""

import json
import shutil
from pathlib import Path

import pytest
from studies.study_runs import PretendTrainer, WholeStudy, pretend_score

from zipflm.cli import app
from zipflm.studies.analyse import is_study, redraw
from zipflm.studies.compare import compare
from zipflm.studies.plan import Request


@pytest.fixture
def without_weights(whole_study: WholeStudy, tmp_path: Path) -> Path:
    """A copy of a study as one would send it to somebody: a few files for every member."""
    ignored = shutil.ignore_patterns("checkpoints", "report.*", "*.csv", "figures")
    return shutil.copytree(whole_study.out, tmp_path / "sent", ignore=ignored)


def test_the_report_comes_out_the_same_without_a_model(
    whole_study: WholeStudy, without_weights: Path, data: Path, tmp_path: Path
) -> None:
    assert is_study(without_weights) and not is_study(whole_study.run_of("ADP-T"))
    redraw(without_weights, data, tmp_path / "drawn")
    before = json.loads((whole_study.out / "table.json").read_text())
    after = json.loads((tmp_path / "drawn" / "table.json").read_text())
    for name in ("title", "dataset", "facts", "differences", "loss_by_word_frequency", "tried"):
        assert after[name] == before[name]
    for ours, theirs in zip(after["rows"], before["rows"], strict=True):
        assert ours["perplexity_test"] == theirs["perplexity_test"]
        assert ours["curve"] == theirs["curve"]
    assert (tmp_path / "drawn" / "report.html").is_file()


def test_report_draws_a_study_that_it_is_given(
    without_weights: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(without_weights), "--data", str(data), "--out", str(tmp_path / "drawn")]
    app(["report", *arguments], standalone_mode=False)
    assert "report.html" in capsys.readouterr().out
    app(["report", *arguments, "--json"], standalone_mode=False)
    table = json.loads((tmp_path / "drawn" / "table.json").read_text())
    assert json.loads(capsys.readouterr().out) == table
    with pytest.raises(ValueError, match="redrawn from its saved scores"):
        app(["report", *arguments, "--block", "32"], standalone_mode=False)


def test_an_interrupted_study_can_be_drawn(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also its members that have no folder yet; only `compare` fails where one has no result."""
    out = tmp_path / "study"
    request = Request(data=data, preset="tiny", out=out, factorizations=("SM", "ADP-T"))
    assert compare(request, train=PretendTrainer(stops_at="SM"), score=pretend_score).stopped
    drawn = tmp_path / "drawn"
    arguments = ["report", str(out), "--data", str(data), "--out", str(drawn)]
    assert not app(arguments, standalone_mode=False)
    assert "ADP-T: not trained" in capsys.readouterr().err
    assert (drawn / "report.md").read_text().startswith("# Unfinished: 0 of 2 models")


def test_what_is_missing_or_damaged_is_named(
    without_weights: Path, data: Path, tmp_path: Path
) -> None:
    member = without_weights / "members" / "ADP-T" / "seed-1"
    kept = (member / "scores" / "test.npz").read_bytes()
    (member / "scores" / "test.npz").write_bytes(kept[:100])
    with pytest.raises(ValueError, match="test.npz: no scores that can be read"):
        redraw(without_weights, data, tmp_path / "a")
    shutil.rmtree(member)
    with pytest.raises(ValueError, match="seed-1: no run there"):
        redraw(without_weights, data, tmp_path / "b")
    (without_weights / "table.json").write_text('{"rows": [{"model": "SM"}]}')
    with pytest.raises(ValueError, match="table.json: damaged or of another release"):
        redraw(without_weights, data, tmp_path / "c")
