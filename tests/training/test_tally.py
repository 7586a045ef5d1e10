"""What is summed between two reports, and what belongs to the whole run."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.runs.records import Sums
from zipflm.training.metrics import Tally
from zipflm.training.step import UpdateResult


def result(nll=10.0, tokens=4.0, words=2.0, norm=1.0, bad=0.0, stop=0.0):
    return UpdateResult(nll=nll, tokens=tokens, words=words, norm=norm, bad=bad, stop=stop)


BAD = result(nll=math.nan, norm=math.inf, bad=1.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    now = [100.0]
    monkeypatch.setattr("zipflm.training.metrics.time.perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


@given(st.lists(st.lists(st.booleans(), max_size=4), max_size=6))
def test_updates_that_were_skipped_are_counted_and_not_summed(groups):
    """True is a good update; a summary is taken after every group."""
    tally, in_a_row, skipped = Tally(skipped=2), 0, 2
    for group in groups:
        tally.see([result() if good else BAD for good in group])
        for good in group:
            in_a_row = 0 if good else in_a_row + 1
            skipped += not good
        assert tally.summary().sums == Sums(10.0 * sum(group), 4 * sum(group), 2 * sum(group))
        assert (tally.bad_in_a_row, tally.skipped) == (in_a_row, skipped)


def test_a_summary_starts_from_nothing_but_the_run_goes_on(clock):
    tally = Tally()
    tally.see([result(norm=3.0), result(norm=5.0)])
    clock(2.0)
    tally.waited += 0.5
    tally.pause()
    first = tally.summary()
    assert (first.grad_norm, first.seconds_per_update, first.data_share) == (5.0, 1.0, 0.25)
    assert first.tokens_per_second == 4.0
    tally.go_on()
    tally.see([result()])
    clock(4.0)
    tally.pause()
    second = tally.summary()
    assert second.sums == Sums(10.0, 4, 2)
    assert (second.tokens_per_second, second.seconds_per_update) == (1.0, 4.0)
    assert second.data_share == 0.0 and tally.seconds == 6.0


def test_only_the_time_of_training_counts_and_that_before_a_resumption_too(clock):
    tally = Tally(seconds=50.0)
    clock(1.0)
    tally.pause()
    clock(1000.0)  # validating and saving
    tally.go_on()
    clock(2.0)
    tally.pause()
    tally.see([result()])
    assert tally.seconds == 53.0
    assert tally.summary().seconds_per_update == 3.0


def test_a_request_to_stop_is_kept_also_from_an_update_that_was_skipped():
    tally = Tally()
    tally.see([result()])
    assert not tally.stop
    tally.see([BAD._replace(stop=1.0), result()])
    assert tally.stop
    tally.summary()
    assert tally.stop


def test_updates_in_which_a_version_was_compiled_count_as_compilation(monkeypatch):
    learner, clock = SimpleNamespace(num_versions=0), iter([0.0, 0.0, 30.0, 31.0, 31.5, 32.0])
    monkeypatch.setattr("zipflm.training.metrics.time.perf_counter", lambda: next(clock))
    tally = Tally(compile_seconds=5.0)
    with tally.compiling(learner):
        learner.num_versions = 1
    with tally.compiling(learner):
        pass
    assert tally.compile_seconds == 35.0


def test_cpu_time_counts_neither_waiting_nor_compilation(monkeypatch):
    learner, now = SimpleNamespace(num_versions=0), [100.0]
    monkeypatch.setattr("zipflm.training.metrics.time.thread_time", lambda: now[0])
    tally, uncounted = Tally(cpu_seconds=5.0), Tally()
    with tally.compiling(learner):
        learner.num_versions, now[0] = 1, 130.0
    with tally.compiling(learner):
        now[0] += 2.0
    tally.pause()
    uncounted.pause()
    now[0] += 50.0  # validating
    tally.go_on()
    now[0] += 1.0
    tally.pause()
    assert tally.cpu_seconds == 8.0 and uncounted.cpu_seconds is None
