"""Equal updates, text or seconds for all members."""

from dataclasses import replace

import pytest
from studies.study_runs import (
    SHORT,
    FakeTrainer,
    plans_for,
    report,
    request_for,
    run_study,
    validation,
)

from zipflm.presets import preset
from zipflm.runs.folder import RunFolder, append_line
from zipflm.studies import budgets
from zipflm.studies.compare import compare

ALL = ("SM", "BPE", "ADP-T")
SECONDS = {"SM": 0.4, "ADP-T": 0.1}
"""Seconds per update."""


def words_of(plan):
    text = plan.data.split("train")
    training = plan.config.training
    return training.max_updates * training.tokens_per_update * text.words / text.tokens


def test_equal_text_gives_sub_words_more_updates(data):
    before = {plan.label: words_of(plan) for plan in plans_for(data, factorizations=ALL)}
    assert before["BPE"] < before["SM"] == before["ADP-T"]
    same = budgets.with_same_text(plans_for(data, factorizations=ALL))
    updates = {plan.label: plan.config.training.max_updates for plan in same}
    assert updates["SM"] == updates["ADP-T"] == 200 < updates["BPE"]
    assert words_of(same[1]) == pytest.approx(before["SM"], rel=0.01)


def test_equal_seconds_gives_slow_models_fewer_updates(data):
    timed = budgets.with_same_seconds(
        plans_for(data, factorizations=ALL), {"SM": 0.2, "BPE": 0.05, "ADP-T": 0.1}
    )
    assert [plan.config.training.max_updates for plan in timed] == [100, 400, 200]
    schedule = timed[1].config.training.schedule  # in updates, so stretched with them
    assert (schedule.warmup_updates, schedule.first_cycle) == (40, 360)


def test_seconds_per_update_ignores_compilation_and_start():
    times = {1: 2.0, 5: 4.0, 10: 5.0, 15: 6.0, 20: 7.1}
    log = [
        replace(report(update, seconds + 30.0, 5.0), compile_seconds=30.0)
        for update, seconds in times.items()
    ]
    assert budgets.seconds_per_update([*log, validation(20, 40.0, 9.0)]) == pytest.approx(0.2)


def test_all_members_use_the_same_tokens_per_update(data):
    """The paper used half of the tokens for SM, for lack of memory."""
    given = {"preset": "wikitext-103", "factorizations": ALL}
    overrides = ("input.cutoffs=3,5", "output.cutoffs=3,5")
    same = plans_for(data, overrides=overrides, **given)
    assert {plan.config.training.tokens_per_update for plan in same} == {65_536}
    assert same[0].config.batches.tokens == 1024  # unchanged
    assert preset("wikitext-103", "SM").training.tokens_per_update == 32_768
    (own, *_) = plans_for(data, overrides=(*overrides, "training.tokens_per_update=4096"), **given)
    assert own.config.training.tokens_per_update == 4096


class Timed(FakeTrainer):
    """Logs the seconds of every update, and records the requested updates."""

    def __init__(self, **options):
        super().__init__(**options)
        self.asked = []

    def __call__(self, config, data, out, **options):
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


def run(data, out, trainer):
    return run_study(data, out, trainer, factorizations=("SM", "ADP-T"), equal="seconds")


def test_equal_seconds_study(data, tmp_path):
    trainer = Timed()
    outcome = run(data, tmp_path, trainer)
    # 200 updates of ADP-T take 20 seconds, in which SM makes 50.
    assert trainer.asked == [("SM", 40), ("ADP-T", 40), ("SM", 50), ("ADP-T", 200)]
    times = [row.mean("seconds") for row in outcome.study.rows]
    assert times == pytest.approx([20, 20])
    assert outcome.study.protocol["held equal"].startswith("seconds (")
    again = Timed()
    run(data, tmp_path, again)
    assert again.asked == []


def test_equal_seconds_with_one_update(data, tmp_path):
    request = request_for(
        data,
        tmp_path,
        factorizations=("ADP-T",),
        overrides=(*SHORT, "training.max_updates=1"),
        equal="seconds",
    )
    assert compare(request, device="cpu").study.finished


def test_equal_seconds_rejects_a_grid_that_changes_the_speed(data, tmp_path):
    grid = ("training.optimizer.lr=1e-3,2e-3", "decoder.num_layers=1,2")
    with pytest.raises(ValueError, match="grid=decoder.num_layers: may change the time"):
        run_study(data, tmp_path, FakeTrainer(), equal="seconds", grid=grid)


def test_resumes_interrupted_calibration(data, tmp_path):
    first = Timed(stops_at="ADP-T")
    outcome = run(data, tmp_path, first)
    assert outcome.stopped and [label for label, _ in first.asked] == ["SM", "ADP-T"]
    second = Timed()
    assert not run(data, tmp_path, second).stopped
    assert second.asked == [("ADP-T", 40), ("SM", 50), ("ADP-T", 200)]


def test_failed_calibration_is_an_error(data, tmp_path):
    with pytest.raises(ValueError, match="equal=seconds: the timing run of SM failed"):
        run(data, tmp_path, Timed(diverges="SM"))
