"""The log of a run that was interrupted is that of a run that was not."""

from dataclasses import fields

import pytest
import torch
from training_runs import reports, run

from zipflm.runs.folder import RunFolder
from zipflm.training import step

MEASURED = {"seconds", "cpu_seconds", "seconds_left", "tokens_per_second", "data_share", "memory"}
LENGTH = [
    "training.max_updates=17",
    "training.report_every=5",
    "training.validate_every=6",
    "training.checkpoint_every=4",
]


def lines(out):
    """All that a log says, except what measures time or memory."""
    return [
        (type(line).__name__, *((f.name, getattr(line, f.name)) for f in fields(line)
                                if f.name not in MEASURED))
        for line in RunFolder(out).log()
    ]  # fmt: skip


def stop_at(monkeypatch, update):
    """A signal that arrives during this update, counted within the session; None for none."""
    true_update, calls = step.update, iter(range(1, 10**6))
    monkeypatch.setattr(
        step,
        "update",
        lambda learner, batches, stop=False: true_update(learner, batches, next(calls) == update),
    )


class Killed(BaseException):
    """Not an error that anybody would handle."""


def die_at(monkeypatch, update):
    true_update, calls = step.update, iter(range(1, 10**6))

    def dying(learner, batches, stop=False):
        if next(calls) == update:
            raise Killed
        return true_update(learner, batches, stop)

    monkeypatch.setattr(step, "update", dying)


@pytest.fixture(scope="module")
def whole(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    torch.set_num_threads(1)  # as in every test: another number rounds differently
    run(word_data, out, *LENGTH)
    return out


@pytest.mark.parametrize("stops", [(1,), (2, 1, 4), (13, 2)])
def test_a_run_that_was_stopped_reports_what_a_whole_one_does(
    word_data, tmp_path, monkeypatch, whole, stops
):
    out = tmp_path / "run"
    for update in stops:
        with monkeypatch.context() as patch:
            stop_at(patch, update)
            assert not run(word_data, out, *LENGTH, resume=True)
    assert run(word_data, out, *LENGTH, resume=True)
    assert lines(out) == lines(whole)


@pytest.mark.parametrize("kills", [(7,), (9, 2, 6)])
def test_a_run_that_was_killed_reports_what_a_whole_one_does(
    word_data, tmp_path, monkeypatch, whole, kills
):
    out = tmp_path / "run"
    for update in kills:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            die_at(patch, update)
            run(word_data, out, *LENGTH, resume=True)
    assert run(word_data, out, *LENGTH, resume=True)
    assert lines(out) == lines(whole)


def test_skipped_updates_are_reported_alike(word_data, tmp_path, monkeypatch):
    """An update without a finite gradient on either side of the interruption."""

    def poison(patch, bad, stop=None):
        true_update, calls = step.update, iter(range(1, 10**6))

        def poisoned(learner, batches, _=False):
            number = next(calls)
            if number not in bad:
                return true_update(learner, batches, number == stop)
            weight = learner.model.decoder.layers[0].ffn_in.weight
            hook = weight.register_hook(lambda grad: grad * float("nan"))
            result = true_update(learner, batches, number == stop)
            hook.remove()
            return result

        patch.setattr(step, "update", poisoned)

    with monkeypatch.context() as patch:
        poison(patch, {6, 9})
        run(word_data, tmp_path / "whole", *LENGTH)
    with monkeypatch.context() as patch:
        poison(patch, {6}, stop=6)
        run(word_data, tmp_path / "halves", *LENGTH)
    done = RunFolder(tmp_path / "halves").choose("newest").update
    with monkeypatch.context() as patch:
        poison(patch, {9 - done})
        run(word_data, tmp_path / "halves", *LENGTH, resume=True)
    assert lines(tmp_path / "halves") == lines(tmp_path / "whole")


def test_the_speed_is_that_of_all_updates_since_the_last_report(
    word_data, tmp_path, monkeypatch, whole
):
    def tokens(out):
        first, second = reports(out)[:2]
        return second.tokens_per_second * (second.seconds - first.seconds)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        run(word_data, out, *LENGTH)
    run(word_data, out, *LENGTH, resume=True)
    assert tokens(out) == pytest.approx(tokens(whole), rel=1e-6)
