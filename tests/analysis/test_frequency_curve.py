"""The curve against frequency follows what is there, with bands that cover it."""

import numpy as np
import pytest

from zipflm.analysis.frequency_curve import CurveAt, frequency_curve
from zipflm.analysis.text_blocks import cut_into_blocks

COUNTS = np.concatenate([[0, 0, 500, 500], np.logspace(0, 5, 200).astype(np.int64)])
IDS = np.random.default_rng(0).integers(4, len(COUNTS), size=20_000)


def curve_of(nll: dict[str, np.ndarray], ids: np.ndarray = IDS) -> tuple[CurveAt, ...]:
    means = np.stack([own.mean(axis=0) for own in nll.values()])
    blocks = cut_into_blocks(np.arange(0, len(ids), 20), np.zeros(0, dtype=np.int64), means)
    reference = next(reversed(nll))
    return frequency_curve(ids, COUNTS, nll, blocks, reference=reference)


def truth(counts: np.ndarray | float) -> np.ndarray:
    return 12 - 2 * np.log10(counts)


def test_a_straight_line_is_found_up_to_its_ends() -> None:
    noise = np.random.default_rng(1).normal(0, 1, len(IDS))
    curve = curve_of({"SM": (truth(COUNTS[IDS]) + noise)[None]})
    assert curve[0].count == pytest.approx(1) and curve[-1].count == pytest.approx(1e5)
    for at in curve:
        assert at.loss["SM"].estimate == pytest.approx(truth(at.count), abs=0.2)
    inside = [at.loss["SM"].low <= truth(at.count) <= at.loss["SM"].high for at in curve]
    assert np.mean(inside) > 0.8


def test_a_difference_shows_where_it_is_and_not_elsewhere() -> None:
    random = np.random.default_rng(2)
    base = truth(COUNTS[IDS]) + random.normal(0, 1, len(IDS))
    rare = base + 1.0 * (COUNTS[IDS] < 30) + random.normal(0, 0.3, len(IDS))
    curve = curve_of({"SM": rare[None], "ADP-T": base[None]})
    for at in curve:
        assert "ADP-T" not in at.difference
        if at.count < 8:
            assert at.difference["SM"].low > 0.7
        elif at.count > 300:
            assert abs(at.difference["SM"].estimate) < 0.15


def test_specials_and_words_that_training_lacks_take_no_part() -> None:
    ids = np.where(np.arange(len(IDS)) % 2 == 0, IDS, 2)
    losses = np.where(ids == 2, 99.0, 5.0)
    curve = curve_of({"SM": losses[None]}, ids)
    assert all(at.loss["SM"].estimate == pytest.approx(5.0) for at in curve)
    assert curve_of({"SM": np.ones((1, 100))}, np.full(100, 2)) == ()


def test_seeds_widen_the_band() -> None:
    base = truth(COUNTS[IDS]) + np.random.default_rng(3).normal(0, 1, len(IDS))
    one = curve_of({"SM": base[None]})
    three = curve_of({"SM": np.stack([base - 0.5, base, base + 0.5])})
    widths = [at.loss["SM"].high - at.loss["SM"].low for at in (one[20], three[20])]
    assert widths[1] > 3 * widths[0]
