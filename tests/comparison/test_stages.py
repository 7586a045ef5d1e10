"""What is trained before the members: short runs that measure time."""

from dataclasses import replace
from pathlib import Path

import pytest
from comparison.studies import PretendTrainer, pretend_score, report

from zipflm.comparison.compare import FinishedStudy, compare
from zipflm.comparison.plan import Request
from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.runs.folder import RunFolder
from zipflm.runs.log import append_line

SECONDS = {"SM": 0.4, "ADP-T": 0.1}
"""Of an update."""


class Timed(PretendTrainer):
    """Takes its time, and knows how many updates it was asked for."""

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, config: Config, data: DataFolder, out: Path) -> bool:
        label, updates = config.name.split("/")[1], config.training.max_updates
        self.asked.append((label, updates))
        done = super().__call__(config, data, out)
        run = RunFolder(out)
        run.log_path.write_text("")
        every = max(1, updates // 10)
        for update in range(every, updates + 1, every):
            line = report(update, 20 + update * SECONDS[label], 5.0)
            append_line(run.log_path, replace(line, compile_seconds=20.0))
        return done


def run(data: Path, out: Path, trainer: PretendTrainer) -> FinishedStudy:
    request = Request(
        data=data, preset="tiny", out=out, factorizations=("SM", "ADP-T"), equal="seconds"
    )
    return compare(request, train=trainer, score=pretend_score)


def test_members_train_as_long_as_the_reference_does(data: Path, tmp_path: Path) -> None:
    trainer = Timed()
    outcome = run(data, tmp_path, trainer)
    # 200 updates of ADP-T take 20 seconds, in which SM makes 50.
    assert trainer.asked == [("SM", 40), ("ADP-T", 40), ("SM", 50), ("ADP-T", 200)]
    times = [row.seconds.mean for row in outcome.study.rows if row.seconds]
    assert times == pytest.approx([20, 20])
    assert outcome.study.facts["held equal"].startswith("seconds: ")


def test_what_was_measured_is_not_measured_again(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path, Timed())
    again = Timed()
    run(data, tmp_path, again)
    assert again.asked == []


def test_an_interruption_while_time_is_measured_ends_the_study_for_now(
    data: Path, tmp_path: Path
) -> None:
    first = Timed(stops_at="ADP-T")
    outcome = run(data, tmp_path, first)
    assert outcome.stopped and [label for label, _ in first.asked] == ["SM", "ADP-T"]
    second = Timed()
    assert not run(data, tmp_path, second).stopped
    assert second.asked == [("ADP-T", 40), ("SM", 50), ("ADP-T", 200)]


def test_a_member_that_cannot_be_timed_is_an_error_of_the_study(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--equal seconds: SM could not be trained .*leave it out"):
        run(data, tmp_path, Timed(diverges="SM"))
