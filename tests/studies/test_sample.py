"""The scored text as a sample: estimates of any of its words, in whatever order models come."""

import numpy as np
import pytest
from studies import example_study as example

from zipflm.studies.statistics import Sample


def sample(**nll: np.ndarray) -> Sample:
    text = example.text()
    return Sample(
        np.asarray(text.word_ids), text.line_starts, text.vocabulary, nll, next(iter(nll), "")
    )


def test_estimates_are_means_over_the_chosen_words() -> None:
    losses = np.random.default_rng(0).random((2, 3000))
    chosen = np.arange(3000) % 3 == 0
    found = sample(SM=losses).estimates(chosen)["SM"]
    assert found.value == pytest.approx(losses[:, chosen].mean())


def test_without_models_there_are_blocks_and_nothing_else() -> None:
    empty = sample()
    assert len(empty.blocks) > 1
    assert empty.estimates(np.ones(3000, dtype=bool)) == {}


def test_bins_have_the_intervals_of_their_words() -> None:
    study = example.study()
    b = study.word_bins[-1]
    low, high = b.interval["SM"]
    loss = b.loss["SM"]
    assert loss is not None and low < loss < high
    assert "ADP-T" not in b.difference and set(b.difference) == set(example.LABELS) - {"ADP-T"}


def test_differences_do_not_depend_on_the_order_of_the_models() -> None:
    members = [example.member(label, rank=i) for i, label in enumerate(("SM", "CNN", "ADP"))]
    studies = [example.study_of(*order) for order in (members, members[::-1])]
    first, second = (study.difference("SM", "ADP") for study in studies)
    assert first is not None and second is not None
    assert first.nats.low == pytest.approx(second.nats.low)
    assert first.nats.high == pytest.approx(second.nats.high)
