"""What is held equal: updates, words of text or seconds, with schedules that end when they do."""

from dataclasses import replace
from pathlib import Path

import pytest
from studies.study_runs import PretendTrainer, plans_for, pretend_score, report, validation

from zipflm.config import Config, CosineCycles
from zipflm.data.folder import DataFolder
from zipflm.presets import preset
from zipflm.runs.folder import RunFolder, append_line
from zipflm.studies import budgets
from zipflm.studies.compare import FinishedStudy, compare
from zipflm.studies.plan import Plan, Request

ALL = ("SM", "BPE", "ADP-T")
SECONDS = {"SM": 0.4, "ADP-T": 0.1}
"""Seconds of an update."""


def plans(data: Path, **changes: object) -> list[Plan]:
    fields: dict[str, object] = {"factorizations": ALL, **changes}
    return plans_for(Request(data=data, preset="tiny", out=Path("s"), **fields))  # type: ignore[arg-type]


def words_of(plan: Plan) -> float:
    text = plan.data.split("train")
    training = plan.config.training
    return training.max_updates * training.tokens_per_update * text.words / text.tokens


def test_with_the_same_text_sub_words_make_more_updates(data: Path) -> None:
    before = {plan.label: words_of(plan) for plan in plans(data)}
    assert before["BPE"] < before["SM"] == before["ADP-T"]
    same = budgets.with_same_text(plans(data))
    updates = {plan.label: plan.config.training.max_updates for plan in same}
    assert updates["SM"] == updates["ADP-T"] == 200 < updates["BPE"]
    assert words_of(same[1]) == pytest.approx(before["SM"], rel=0.01)


def test_with_the_same_seconds_the_slow_make_fewer_updates(data: Path) -> None:
    timed = budgets.with_same_seconds(plans(data), {"SM": 0.2, "BPE": 0.05, "ADP-T": 0.1})
    assert [plan.config.training.max_updates for plan in timed] == [100, 400, 200]
    schedule = timed[1].config.training.schedule  # in updates, so stretched with them
    assert isinstance(schedule, CosineCycles)
    assert (schedule.warmup_updates, schedule.first_cycle) == (40, 360)


def test_the_time_of_an_update_leaves_out_compilation_and_the_beginning() -> None:
    times = {1: 2.0, 5: 4.0, 10: 5.0, 15: 6.0, 20: 7.1}
    log = [
        replace(report(update, seconds + 30.0, 5.0), compile_seconds=30.0)
        for update, seconds in times.items()
    ]
    assert budgets.seconds_per_update([*log, validation(20, 40.0, 9.0)]) == pytest.approx(0.2)


def test_an_update_has_as_many_tokens_for_every_member_unless_the_user_decides(data: Path) -> None:
    """The paper's SM had half of the others' tokens for want of memory."""
    asked = Request(data=data, preset="wikitext-103", out=Path("s"), factorizations=ALL)
    overrides = ("input.cutoffs=3,5", "output.cutoffs=3,5")
    same = plans_for(replace(asked, overrides=overrides))
    assert {plan.config.training.tokens_per_update for plan in same} == {65_536}
    assert same[0].config.batches.tokens == 1024  # as much as fits, as before
    assert preset("wikitext-103", "SM").training.tokens_per_update == 32_768
    own = (*overrides, "training.tokens_per_update=4096")
    assert plans_for(replace(asked, overrides=own))[0].config.training.tokens_per_update == 4096


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


def test_members_train_as_long_as_the_reference_and_are_timed_once(
    data: Path, tmp_path: Path
) -> None:
    trainer = Timed()
    outcome = run(data, tmp_path, trainer)
    # 200 updates of ADP-T take 20 seconds, in which SM makes 50.
    assert trainer.asked == [("SM", 40), ("ADP-T", 40), ("SM", 50), ("ADP-T", 200)]
    times = [row.mean("seconds") for row in outcome.study.rows]
    assert times == pytest.approx([20, 20])
    assert outcome.study.facts["held equal"].startswith("seconds: ")
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
    with pytest.raises(ValueError, match="--equal seconds: SM could not be trained"):
        run(data, tmp_path, Timed(diverges="SM"))
