"""Sums and what they mean, states and versions as a run keeps them."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies.study_runs import report, validation

from zipflm.config import Splitting
from zipflm.runs.records import (
    ImportedState,
    LogLine,
    Place,
    Resumption,
    SinceReport,
    State,
    Sums,
    TrainingState,
    Versions,
)
from zipflm.settings import as_json, load_object, parse


@given(
    st.floats(0, 1e6),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
)
def test_the_total_is_the_same_counted_by_tokens_or_by_words(nll, words, more):
    sums = Sums(nll, words + more, words)
    assert sums.nats_per_token * sums.tokens == pytest.approx(nll)
    assert sums.nats_per_word * sums.words == pytest.approx(nll)
    assert sums.nats_per_token <= sums.nats_per_word


def test_a_perplexity_is_per_word():
    assert Sums(nll=6.0, tokens=4, words=2).perplexity == pytest.approx(math.exp(3))


@pytest.mark.parametrize("sums", [Sums(0.0, 0, 0), Sums(3.0, 2, 0)])
def test_without_words_there_is_no_perplexity(sums):
    """Neither 1, which would be perfect, nor an error."""
    assert math.isnan(sums.nats_per_word) and math.isnan(sums.perplexity)
    assert math.isnan(sums.nats_per_token) == (sums.tokens == 0)


def test_a_diverged_sum_has_an_infinite_perplexity():
    assert Sums(math.inf, 5, 5).perplexity == math.inf
    assert math.isnan(Sums(math.nan, 5, 5).perplexity)


def through_json(record, hint):
    return parse(hint, load_object(as_json(record, hint)), "")


@pytest.mark.parametrize("line", [report(5, 1.0, 3.0), validation(5, 1.0, 20.0)])
def test_lines_of_the_log_survive_json(line):
    assert through_json(line, LogLine) == line


def test_a_line_whose_numbers_are_not_finite_has_none_of_them():
    line = replace(report(5, 1.0, math.inf), nats_per_word=math.nan, grad_norm=math.nan)
    read = through_json(line, LogLine)
    assert (read.loss, read.nats_per_word, read.perplexity, read.grad_norm) == (None,) * 4


def test_states_survive_json_and_are_told_apart():
    state = TrainingState(
        update=7,
        place=Place(2, 5, 9),
        seconds=1.5,
        skipped=1,
        skipped_in_a_row=1,
        since_report=SinceReport(updates=2, nll=5.25, tokens=4, words=3, grad_norm=0.1),
        loss_scale=(128.0, 3.0),
        seed=1,
        world_size=2,
        vocabulary="v",
        text="t",
        keep=3,
        valid=validation(7, 1.5, 20.0),
    )
    imported = ImportedState(update=7, imported_from="model.pt")
    for one in (state, replace(state, loss_scale=None, valid=None), imported):
        assert through_json(one, State) == one
        assert json.loads(as_json(one, State))["kind"] == type(one).__name__


@pytest.mark.parametrize(
    ("loss", "is_proven"), [(3.0, True), (math.nan, False), (math.inf, False), (None, False)]
)
def test_a_finite_loss_on_the_valid_set_proves_a_state(loss, is_proven):
    state = TrainingState(
        update=7,
        place=Place(),
        seconds=0.0,
        skipped=0,
        skipped_in_a_row=0,
        since_report=SinceReport(),
        loss_scale=None,
        seed=1,
        world_size=1,
        vocabulary="v",
        text="t",
        keep=1,
        valid=replace(validation(7, 1.5, 20.0), nats_per_word=loss),
    )
    assert state.is_proven == is_proven and not replace(state, valid=None).is_proven


def test_the_latest_is_the_last_resumption_or_the_start():
    facts = {"python": "3", "packages": {"torch": "2"}, "commit": None, "vocabulary": "v"}
    facts["splitting"] = Splitting("words", lowercase=True)
    started = Versions(**facts, text="first", data="a")
    assert started.latest is started
    resumed = tuple(
        Resumption(**facts, text=t, data="b", update=u) for t, u in (("x", 2), ("y", 4))
    )
    versions = replace(started, resumed=resumed)
    assert versions.latest is resumed[-1] and versions.text == "first"
    assert through_json(versions, Versions) == versions
