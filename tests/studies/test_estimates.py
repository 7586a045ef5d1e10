"""Intervals hold what they promise: 95 of 100 cover the truth, whatever depends on what."""

import numpy as np
import pytest

from zipflm.studies.statistics import TextBlocks, cut_into_blocks, mean_of, quantile, two_sided_p

NO_HEADINGS = np.zeros(0, dtype=np.int64)
WORDS_IN_A_LINE = 10


def line_effects(kind: str, lines: int, random: np.random.Generator) -> np.ndarray:
    """What all words of a line have in common, zero on average."""
    noise = random.normal(size=lines)
    if kind == "independent":
        return 0.3 * noise
    if kind == "autoregressive":  # half of it is left after seven lines
        effects = np.empty(lines)
        state = random.normal() / np.sqrt(1 - 0.9**2)
        for i in range(lines):
            state = 0.9 * state + noise[i]
            effects[i] = state
        return 0.3 * effects
    lengths = random.integers(10, 60, size=lines)  # documents of their own difficulty
    document = np.repeat(np.arange(lines), lengths)[:lines]
    return 0.3 * noise + 0.5 * random.normal(size=lines)[document]


def blocks_of(losses: np.ndarray) -> TextBlocks:
    lines = np.arange(0, losses.shape[-1], WORDS_IN_A_LINE)
    return cut_into_blocks(lines, NO_HEADINGS, np.atleast_2d(losses))


def sums_of(blocks: TextBlocks, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[seeds, blocks] and [blocks]."""
    sums = np.stack([np.add.reduceat(own, blocks.starts) for own in np.atleast_2d(losses)])
    return sums, np.diff(np.append(blocks.starts, blocks.num_words)).astype(float)


@pytest.mark.parametrize(
    ("kind", "lines", "least"),
    [
        ("independent", 300, 0.93),
        ("autoregressive", 300, 0.92),  # about fifteen independent stretches of text
        ("documents", 1200, 0.93),
    ],
)
def test_intervals_of_a_paired_difference_cover_the_truth(
    kind: str, lines: int, least: float
) -> None:
    """Both models share what makes a line hard; what differs depends on the line too."""
    random = np.random.default_rng([lines, len(kind)])
    covered = []
    for _ in range(250):
        shared = np.repeat(5 + 3 * line_effects(kind, lines, random), WORDS_IN_A_LINE)
        own = np.repeat(line_effects(kind, lines, random), WORDS_IN_A_LINE)
        noise = random.normal(size=(2, len(shared)))
        first, second = shared + noise[0], shared + own + 0.1 + noise[1]
        blocks = blocks_of(np.stack([first, second]))
        estimates = [mean_of(*sums_of(blocks, losses)) for losses in (second, first)]
        interval = (estimates[0] - estimates[1]).interval
        if interval is not None:
            covered.append(interval.low <= 0.1 <= interval.high)
    assert len(covered) >= 245 and least <= np.mean(covered) <= 0.995


def test_two_sources_have_no_interval() -> None:
    """A difference with one value in the first part of the text and another in the rest."""
    noise = np.random.default_rng(0).normal(0, 0.1, size=3000)
    losses = 5 + np.where(np.arange(3000) < 1200, 0.0, 0.3) + noise
    blocks = blocks_of(losses)
    assert len(blocks) > 3 and mean_of(*sums_of(blocks, losses)).interval is None


def test_blocks_of_very_unequal_length_cover_the_truth_or_have_no_interval() -> None:
    """One line with a given share of the words, of which each line has its own difference."""
    random = np.random.default_rng(1)
    for share in (0.3, 0.5, 0.7, 0.9):
        counts = np.append(share / (1 - share) * 29 * 200, np.full(29, 200.0))
        sums = random.normal(0, 0.1, size=(300, 30)) * counts
        found = [mean_of(each[None], counts).interval for each in sums]
        shown = [interval for interval in found if interval is not None]
        covered = [interval.low < 0 < interval.high for interval in shown]
        assert not shown or np.mean(covered) >= 0.92, share
    assert not shown


def test_one_block_unlike_the_others_has_an_interval() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, size=3000)
    losses = 5 + np.where(np.arange(3000) < 100, 0.3, 0.0) + noise
    blocks = blocks_of(losses)
    assert len(blocks) == 30 and mean_of(*sums_of(blocks, losses)).interval is not None


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_what_other_seeds_would_give(seeds: int) -> None:
    """The truth is the mean over all seeds and all text; both are samples."""
    random = np.random.default_rng(seeds)
    covered, lines = [], 400
    for _ in range(300):
        estimates = []
        text = np.repeat(line_effects("independent", lines, random), WORDS_IN_A_LINE)
        for _ in range(2):
            of_seed = random.normal(0, 0.03, size=(seeds, 1))
            losses = 5 + text + of_seed + random.normal(size=(seeds, len(text)))
            blocks = blocks_of(text)
            estimates.append(mean_of(*sums_of(blocks, losses)))
        interval = (estimates[0] - estimates[1]).interval
        if interval is not None:
            covered.append(interval.low <= 0 <= interval.high)
    assert len(covered) >= 297 and 0.92 <= np.mean(covered) <= 0.995


def test_without_seeds_in_the_interval_it_would_be_too_narrow() -> None:
    """What the test before this one can tell: text alone covers far less."""
    random = np.random.default_rng(0)
    text = 5 + random.normal(size=4000)
    blocks = blocks_of(text)
    several = mean_of(*sums_of(blocks, np.stack([text, text + 0.3, text - 0.3])))
    one = mean_of(*sums_of(blocks, text))
    assert several.has_all_seeds and not one.has_all_seeds
    wide, narrow = several.interval, one.interval
    assert wide is not None and narrow is not None
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert not (several - one).has_all_seeds


def test_pairing_cancels_what_is_hard_for_both() -> None:
    random = np.random.default_rng(0)
    hard = np.repeat(5 + 2 * random.normal(size=400), WORDS_IN_A_LINE)
    blocks = blocks_of(hard)
    first = mean_of(*sums_of(blocks, hard + 0.1 + random.normal(0, 0.1, len(hard))))
    second = mean_of(*sums_of(blocks, hard))
    alone, paired = first.interval, (first - second).interval
    assert alone is not None and paired is not None
    assert (alone.high - alone.low) > 20 * (paired.high - paired.low)
    assert paired.excludes_zero and paired.low < 0.1 < paired.high


def test_few_blocks_give_wide_intervals_and_too_few_none() -> None:
    random = np.random.default_rng(5)
    widths = []
    for number in (4, 30):
        sums, counts = random.normal(5, 1, size=(1, number)), np.ones(number)
        sums = (sums - sums.mean()) / sums.std() + 5  # the same spread for both
        interval = mean_of(sums, counts).interval
        assert interval is not None
        widths.append((interval.high - interval.low) * np.sqrt(number))
    assert widths[0] > 1.5 * widths[1]
    assert mean_of(np.ones((1, 2)), np.ones(2)).interval is None


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (29, 2.045)],
)
def test_quantiles_are_those_of_printed_tables(degrees: int, expected: float) -> None:
    assert quantile(degrees) == pytest.approx(expected, abs=6e-4)


def test_p_is_how_often_chance_goes_so_far() -> None:
    random = np.random.default_rng(0)
    samples = random.normal(size=(20_000, 6))
    t = samples.mean(axis=1) / (samples.std(axis=1, ddof=1) / np.sqrt(6))
    p = two_sided_p(t, 5)
    for level in (0.05, 0.5, 0.9):
        assert (p < level).mean() == pytest.approx(level, abs=0.012)
