import json
import math
from dataclasses import replace

import pytest
from studies.study_runs import report, validation

from zipflm.config import Splitting
from zipflm.runs.records import (
    ImportedState,
    LogLine,
    Position,
    Resumption,
    SavedState,
    SinceReport,
    Sums,
    TrainingState,
    Versions,
)
from zipflm.settings import as_json, load_object, parse


@pytest.mark.parametrize("sums", [Sums(0.0, 0, 0), Sums(3.0, 2, 0)])
def test_perplexity_without_words_is_nan(sums):
    assert math.isnan(sums.nats_per_word) and math.isnan(sums.perplexity)
    assert math.isnan(sums.nats_per_token) == (sums.tokens == 0)


def through_json(record, hint):
    return parse(hint, load_object(as_json(record, hint)), "")


def test_non_finite_numbers_are_stored_as_null():
    line = replace(report(5, 1.0, math.inf), nats_per_word=math.nan, grad_norm=math.nan)
    read = through_json(line, LogLine)
    assert (read.loss, read.nats_per_word, read.perplexity, read.grad_norm) == (None,) * 4


def test_states_survive_json():
    state = TrainingState(
        update=7,
        place=Position(2, 5, 9),
        seconds=1.5,
        skipped=1,
        skipped_in_a_row=1,
        since_report=SinceReport(updates=2, nll=5.25, tokens=4, words=3, grad_norm=0.1),
        loss_scale=(128.0, 3.0),
        seed=1,
        world_size=2,
        vocabulary="v",
        text="t",
        valid=validation(7, 1.5, 20.0),
    )
    imported = ImportedState(update=7, imported_from="model.pt")
    for one in (state, replace(state, loss_scale=None, valid=None), imported):
        assert through_json(one, SavedState) == one
        assert json.loads(as_json(one, SavedState))["kind"] == type(one).__name__


def test_latest_version_is_the_last_resumption():
    metadata = {"python": "3", "packages": {"torch": "2"}, "commit": None, "vocabulary": "v"}
    metadata["splitting"] = Splitting("words", lowercase=True)
    started = Versions(**metadata, text="first", data="a")
    assert started.latest is started
    resumed = tuple(
        Resumption(**metadata, text=t, data="b", update=u) for t, u in (("x", 2), ("y", 4))
    )
    versions = replace(started, resumed=resumed)
    assert versions.latest is resumed[-1] and versions.text == "first"
    assert through_json(versions, Versions) == versions
