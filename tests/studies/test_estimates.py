"""Coverage of 95% intervals for several kinds of correlated text."""

import numpy as np
import pytest

from zipflm.studies.statistics import critical_value, cut_into_blocks, mean_of

NO_HEADINGS = np.zeros(0, dtype=np.int64)
WORDS_IN_A_LINE = 10


def line_effects(kind, lines, random):
    """The effect shared by all words of a line, zero on average."""
    noise = random.normal(size=lines)
    if kind == "independent":
        return 0.3 * noise
    if kind == "autoregressive":  # half-life of seven lines
        effects = np.empty(lines)
        state = random.normal() / np.sqrt(1 - 0.9**2)
        for i in range(lines):
            state = 0.9 * state + noise[i]
            effects[i] = state
        return 0.3 * effects
    lengths = random.integers(10, 60, size=lines)  # documents differ in difficulty
    document = np.repeat(np.arange(lines), lengths)[:lines]
    return 0.3 * noise + 0.5 * random.normal(size=lines)[document]


def blocks_of(losses):
    lines = np.arange(0, losses.shape[-1], WORDS_IN_A_LINE)
    return cut_into_blocks(lines, NO_HEADINGS, np.atleast_2d(losses))


def sums_of(blocks, losses):
    """[seeds, blocks] and [blocks]."""
    sums = np.stack([np.add.reduceat(own, blocks.starts) for own in np.atleast_2d(losses)])
    return sums, np.diff(np.append(blocks.starts, blocks.num_words)).astype(float)


@pytest.mark.parametrize(
    ("kind", "lines", "least"),
    [
        ("independent", 300, 0.93),
        ("autoregressive", 300, 0.92),  # about fifteen independent pieces of text
        ("documents", 1200, 0.93),
    ],
)
def test_intervals_of_a_paired_difference_cover_the_truth(kind, lines, least):
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


def test_text_with_two_sources_has_no_interval():
    noise = np.random.default_rng(0).normal(0, 0.1, size=3000)
    losses = 5 + np.where(np.arange(3000) < 1200, 0.0, 0.3) + noise
    blocks = blocks_of(losses)
    assert len(blocks) > 3 and mean_of(*sums_of(blocks, losses)).interval is None


def test_intervals_with_unequal_blocks_cover_the_truth():
    """One block has a large share of the words."""
    random = np.random.default_rng(1)
    for share in (0.3, 0.5, 0.7, 0.9):
        counts = np.append(share / (1 - share) * 29 * 200, np.full(29, 200.0))
        sums = random.normal(0, 0.1, size=(300, 30)) * counts
        found = [mean_of(each[None], counts).interval for each in sums]
        shown = [interval for interval in found if interval is not None]
        covered = [interval.low < 0 < interval.high for interval in shown]
        assert not shown or np.mean(covered) >= 0.92, share
    assert not shown


def test_single_outlier_block_has_an_interval():
    noise = np.random.default_rng(0).normal(0, 0.1, size=3000)
    losses = 5 + np.where(np.arange(3000) < 100, 0.3, 0.0) + noise
    blocks = blocks_of(losses)
    assert len(blocks) == 30 and mean_of(*sums_of(blocks, losses)).interval is not None


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_the_choice_of_seeds(seeds):
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


def test_pairing_cancels_shared_variance():
    random = np.random.default_rng(0)
    hard = np.repeat(5 + 2 * random.normal(size=400), WORDS_IN_A_LINE)
    blocks = blocks_of(hard)
    first = mean_of(*sums_of(blocks, hard + 0.1 + random.normal(0, 0.1, len(hard))))
    second = mean_of(*sums_of(blocks, hard))
    alone, paired = first.interval, (first - second).interval
    assert (alone.high - alone.low) > 20 * (paired.high - paired.low)
    assert paired.excludes_zero and paired.low < 0.1 < paired.high


def test_same_runs_are_paired():
    """A gain that every seed has is certain, even if seeds differ by more."""
    random = np.random.default_rng(0)
    sums, runs = random.normal(50, 1, size=(3, 30)) + [[-3], [0], [3]], ["a", "b", "c"]
    without, gained = (mean_of(each, np.full(30, 10), runs) for each in (sums, sums - 0.5))
    others = mean_of(sums, np.full(30, 10), ["d", "e", "f"])
    paired = (gained - without).interval
    assert paired.low == pytest.approx(-0.05) and paired.high == pytest.approx(-0.05)
    assert not (gained - others).interval.excludes_zero


def test_few_blocks_give_wide_intervals():
    random = np.random.default_rng(5)
    widths = []
    for number in (4, 30):
        sums, counts = random.normal(5, 1, size=(1, number)), np.ones(number)
        sums = (sums - sums.mean()) / sums.std() + 5  # the same spread for both
        interval = mean_of(sums, counts).interval
        widths.append((interval.high - interval.low) * np.sqrt(number))
    assert widths[0] > 1.5 * widths[1]
    assert mean_of(np.ones((1, 2)), np.ones(2)).interval is None


@pytest.mark.parametrize(
    ("dof", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (29, 2.045)],
)
def test_critical_values_match_printed_tables(dof, expected):
    assert critical_value(dof) == pytest.approx(expected, abs=6e-4)


def test_intervals_of_losses_are_not_negative():
    random = np.random.default_rng(0)
    losses = mean_of(random.exponential(1, size=(1, 4)), np.ones(4))
    assert losses.interval.low < 0 == losses.loss_interval.low
    assert losses.loss_interval.high == losses.interval.high
