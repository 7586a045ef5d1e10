"""Rows over seeds, members without a result, and agreement of bins and totals."""

from dataclasses import replace

import numpy as np
import pytest
from studies import example_study as example

from zipflm.studies.build import split_score


def test_bins_average_to_the_tables_loss() -> None:
    study = example.study()
    for bins in (study.word_bins, study.previous_bins):
        for label in example.LABELS:
            total = sum(b.tokens * (b.loss[label] or 0) for b in bins) / sum(b.tokens for b in bins)
            assert total == pytest.approx(example.total_loss(study, label))


def test_seeds_make_one_row_with_their_spread() -> None:
    study = example.study(seeds=3)
    assert [row.label for row in study.rows] == list(example.LABELS)
    row = study.rows[0]
    values = [m.scores["test"].perplexity for m in row.members]
    summary = row.perplexity["test"]
    # So that the ratio of two rows is exactly the difference of their losses.
    assert summary.mean == pytest.approx(np.exp(np.mean(np.log(values))))
    assert summary.deviation == pytest.approx(np.std(values, ddof=1))


def test_without_adpt_the_first_finished_row_is_the_reference() -> None:
    assert example.study(broken="ADP-T").reference == "SM"
    assert example.study().reference == "ADP-T"


@pytest.mark.parametrize(
    ("seeds", "compiled"),
    [([None, None], None), ([True, True], True), ([True, False], False), ([None, False], False)],
)
def test_a_row_ran_compiled_if_all_its_seeds_did(
    seeds: list[bool | None], compiled: bool | None
) -> None:
    members = [replace(example.member("SM", n), compiled=c) for n, c in enumerate(seeds, start=1)]
    study = example.study_of(*members)
    assert study.rows[0].compiled is compiled


def test_a_seed_without_a_result_does_not_count_for_its_row() -> None:
    lost = replace(example.member("SM", 2, problem="diverged"), compiled=False)
    members = [replace(example.member("SM", 1), compiled=True), lost]
    study = example.study_of(*members)
    assert study.rows[0].compiled is True and study.rows[0].problem == "seed 2: diverged"


def test_a_curve_of_several_seeds_has_the_updates_that_all_have() -> None:
    one, other = example.member("SM", 1), example.member("SM", 2)
    gap = replace(other.curve[3], loss=None)
    other = replace(other, curve=(*other.curve[:3], gap, *other.curve[5:]))
    study = example.study_of(one, other)
    points = {point.update: point for point in study.rows[0].curve}
    assert list(points) == [10, 20, 30, 40, 60, 70, 80, 90, 100]
    assert points[40].loss is None
    losses = [member.curve[0].loss for member in (one, other)]
    assert points[10].loss == pytest.approx(np.mean(losses))


def test_known_words_are_those_that_are_not_unknown() -> None:
    ids, nll = np.array([5, 3, 6, 3]), np.array([1.0, 8.0, 2.0, 8.0])
    protocol = example.member("SM").scores["test"].protocol
    score = split_score(nll, ids, protocol)
    assert (score.loss, score.known_loss) == (4.75, 1.5)
    assert np.isnan(split_score(nll[1::2], ids[1::2], protocol).known_perplexity)


@pytest.mark.parametrize("nll", [[1e4, 1e4], [np.inf, 1.0]])
def test_a_loss_beyond_all_perplexities_is_refused(nll: list[float]) -> None:
    protocol = example.member("SM").scores["test"].protocol
    with pytest.raises(ValueError, match="an infinite perplexity: its training diverged"):
        split_score(np.array(nll), np.array([5, 6]), protocol)
