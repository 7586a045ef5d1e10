"""What is held equal: updates, words of text or seconds, with schedules that end when they do."""

from dataclasses import replace
from pathlib import Path

import pytest
from comparison.studies import make_data, plans_for, report, validation

from zipflm.comparison import budgets
from zipflm.comparison.plan import Plan, Request
from zipflm.config import CosineCycles, WarmupDecay
from zipflm.presets import preset

ALL = ("SM", "BPE", "ADP-T")


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


def test_schedules_are_stretched_with_their_updates() -> None:
    config = preset("tiny")
    schedule = budgets.stretched(config, 400).training.schedule
    assert schedule == replace(config.training.schedule, warmup_updates=40, first_cycle=360)
    assert isinstance(schedule, CosineCycles)
    modern = budgets.stretched(preset("demo"), 480).training
    assert modern.max_updates == 480 and isinstance(modern.schedule, WarmupDecay)
    assert modern.schedule == preset("demo").training.schedule  # in fractions


def test_calibrations_are_short_runs_of_their_own_one_for_all_seeds(data: Path) -> None:
    short = budgets.calibrations(plans(data, seeds=2), Path("s"))
    assert [plan.run.path for plan in short] == [Path("s/calibration") / name for name in ALL]
    for plan in short:
        training = plan.config.training
        assert training.max_updates == 40 and training.validate_every == 0
        assert training.max_updates // training.report_every >= 10


def test_the_time_of_an_update_leaves_out_compilation_and_the_beginning() -> None:
    def line(update: int, seconds: float):  # type: ignore[no-untyped-def]
        return replace(report(update, seconds + 30.0, 5.0), compile_seconds=30.0)

    log = [line(1, 2.0), line(5, 4.0), line(10, 5.0), line(15, 6.0), line(20, 7.1)]
    assert budgets.seconds_per_update([*log, validation(20, 40.0, 9.0)]) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="too few reports"):
        budgets.seconds_per_update(log[:1])


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


def test_the_choice_is_told_and_another_word_refused(tmp_path: Path) -> None:
    made = plans(make_data(tmp_path))
    assert "as in the paper: every model makes 200 updates" in budgets.describe("updates", made)
    assert "204,800 running words" in budgets.describe("text", made)
    assert "as 200 updates take ADP-T" in budgets.describe("seconds", made)
    with pytest.raises(ValueError, match="--equal time: choose from updates, text, seconds"):
        budgets.require_known("time")
