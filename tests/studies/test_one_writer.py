"""Two studies, or analyses, never write into one folder at once."""

import os
from pathlib import Path

import pytest
from studies.study_runs import PretendTrainer, pretend_score

from zipflm.storage import sole_writer
from zipflm.studies.compare import compare
from zipflm.studies.plan import Request


def request_for(data: Path, out: Path) -> Request:
    return Request(data=data, preset="tiny", out=out, factorizations=("SM",))


def test_a_second_study_is_refused_before_it_looks_at_the_folder(
    data: Path, tmp_path: Path
) -> None:
    trainer = PretendTrainer()
    # It would be refused as well, but by what another process may be about to change.
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "table.json").write_text("damaged")
    with sole_writer(tmp_path / "study"):
        with pytest.raises(ValueError, match=f"study: in use by process {os.getpid()} on "):
            compare(request_for(data, tmp_path / "study"), train=trainer, score=pretend_score)
    assert trainer.trained == []


def test_a_study_holds_its_folder_while_it_trains_and_scores(data: Path, tmp_path: Path) -> None:
    out, tried = tmp_path / "study", []

    def score(*arguments):  # type: ignore[no-untyped-def]
        with pytest.raises(ValueError, match="in use by"), sole_writer(out):
            pytest.fail("it must be refused")
        tried.append("while scoring")
        return pretend_score(*arguments)

    compare(request_for(data, out), train=PretendTrainer(), score=score)
    assert tried == ["while scoring"]
    assert not list(out.rglob(".*"))


def test_the_next_study_removes_what_a_killed_one_left(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    compare(request_for(data, out), train=PretendTrainer(), score=pretend_score)
    for name in (".lock", ".unfinished-of-another-release.html"):
        (out / name).write_text("{")
    compare(request_for(data, out), train=PretendTrainer(), score=pretend_score)
    assert not list(out.rglob(".*"))
