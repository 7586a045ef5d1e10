"""Suggested bands, compared with exhaustive search, random cutoffs and the paper's bands."""

import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm import AdaptiveEmbedding, AdaptiveSoftmax, Bands
from zipflm.config import AdaptiveOutput, Tie
from zipflm.model.band_search import CPU, DEVICES, H200, Costs, paper_bands, suggest, weigh


def zipf(vocab_size, shift=0.0):
    return 1e9 / (np.arange(vocab_size) + 1 + shift)


PLAIN = Costs(per_logit=0.0, tail_product=1.0, per_tail=0.0)


@pytest.mark.parametrize("cutoffs", [(), (30,), (20, 60), (5, 20, 60)])
def test_params_match_a_tied_pair(cutoffs):
    bands = Bands(200, cutoffs, 64, 4)
    embedding = AdaptiveEmbedding(bands)
    softmax = AdaptiveSoftmax(bands, tied_to=embedding, tie="projections") if cutoffs else None
    pair = [module for module in (embedding, softmax) if module is not None]
    built = sum(parameter.numel() for module in pair for parameter in module.parameters())
    assert weigh(bands, zipf(200)).params == built


def test_cost_matches_config_and_projects_every_token():
    counts = zipf(500)
    bands = Bands(500, (40, 200), 64, 4)
    weighed = weigh(bands, counts, PLAIN)
    shares = np.concatenate([[0], np.cumsum(counts) / counts.sum()])
    output = AdaptiveOutput(cutoffs=(40, 200), dim=64)
    counted = output.products(500, 64, Tie.PROJECTIONS, lambda a, b: shares[b] - shares[a])
    head, *tails = weighed.coverage
    unseen = sum((1 - share) * 64 * width for share, width in zip(tails, (16, 4), strict=True))
    assert weighed.cost == pytest.approx(counted + unseen)
    assert head + sum(tails) == pytest.approx(1)
    widths = 64.0**head * 16 ** tails[0] * 4 ** tails[1]
    assert weighed.mean_width == pytest.approx(widths)


def all_cutoffs(vocab_size, dim, numbers, counts, budget, costs):
    for number in numbers:
        for cutoffs in combinations(range(1, vocab_size), number):
            weighed = weigh(Bands(vocab_size, cutoffs, dim), counts, costs)
            if weighed.params <= budget:
                yield weighed


@settings(max_examples=25)
@given(st.integers(4, 22), st.integers(0, 2**32 - 1), st.floats(0.2, 1.1), st.data())
def test_matches_exhaustive_search_on_small_vocabularies(vocab_size, seed, part, data):
    random = np.random.default_rng(seed)
    counts = np.sort(random.pareto(1.0, vocab_size) + 0.01)[::-1]
    costs = data.draw(st.sampled_from([PLAIN, CPU, H200]))
    dim, numbers = 128, [data.draw(st.integers(1, 3))]
    budget = int(part * weigh(Bands(vocab_size, (), dim), counts).params) + 128 * 8 * 8
    rivals = list(all_cutoffs(vocab_size, dim, numbers, counts, budget, costs))
    if not rivals:
        with pytest.raises(ValueError, match="budget"):
            suggest(counts, dim=dim, budget=budget, tails=numbers[0], costs=costs)
        return
    found = suggest(counts, dim=dim, budget=budget, tails=numbers[0], costs=costs)
    assert found.params <= budget
    assert found.score == pytest.approx(max(rival.score for rival in rivals), abs=1e-12)


@pytest.mark.parametrize("costs", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("vocab_size", [3_000, 40_000])
def test_beats_random_cutoffs_on_large_vocabularies(vocab_size, costs):
    counts = zipf(vocab_size, shift=2.7)
    random = np.random.default_rng(0)
    found = suggest(counts, dim=256, costs=costs)
    budget = weigh(paper_bands(vocab_size, 256), counts).params
    for _ in range(600):
        cuts = np.unique(random.geometric(2 / vocab_size, random.integers(1, 4)))
        near = np.array(found.bands.cutoffs) + random.integers(-30, 31, found.bands.num_tails)
        for cutoffs in (cuts, near):
            cutoffs = sorted({int(min(max(cut, 1), vocab_size - 1)) for cut in cutoffs})
            rival = weigh(Bands(vocab_size, tuple(cutoffs), 256), counts, costs)
            assert rival.params > budget or rival.score <= found.score + 1e-9, cutoffs


@pytest.mark.parametrize("costs", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize(("vocab_size", "dim"), [(267_744, 1024), (33_280, 512), (15_984, 128)])
def test_beats_the_papers_proportions(vocab_size, dim, costs):
    counts = zipf(vocab_size, shift=2.7)
    paper = weigh(paper_bands(vocab_size, dim), counts, costs)
    found = suggest(counts, dim=dim, costs=costs)
    assert found.params <= paper.params
    assert found.score >= paper.score


def test_paper_bands():
    assert paper_bands(267_744, 1024) == Bands(267_744, (20_000, 60_000), 1024)
    assert paper_bands(3, 64).cutoffs == (1, 2)
    assert paper_bands(1, 64).cutoffs == ()
    assert paper_bands(267_744, 8).cutoffs == (20_000,)  # a second tail would have width 0
    assert paper_bands(267_744, 64, max_tails=1).cutoffs == (20_000,)


def test_larger_budgets_increase_width_and_score():
    counts = zipf(20_000)
    found = [
        suggest(counts, dim=256, budget=budget) for budget in range(800_000, 6_000_000, 400_000)
    ]
    scores, widths = [row.score for row in found], [row.mean_width for row in found]
    assert scores == sorted(scores) and widths == sorted(widths)
    assert suggest(counts, dim=256, budget=10**9).mean_width > 250


def test_avoids_expensive_tails():
    counts, budget = zipf(5_000), 1_150_000
    cheap = suggest(counts, dim=512, budget=budget, costs=PLAIN)
    dear = suggest(counts, dim=512, budget=budget, costs=Costs(0.0, 1.0, 1e9))
    assert dear.bands.num_tails < cheap.bands.num_tails


def test_million_words_take_less_than_a_second():
    counts = zipf(1_000_000)
    start = time.process_time()
    found = suggest(counts, dim=1024)
    assert time.process_time() - start < 1.0
    assert found == suggest(counts, dim=1024)


def test_bands_suggest_and_explain():
    counts = zipf(20_000).astype(int)
    bands = Bands.suggest(counts, dim=512, budget=4_000_000)
    assert bands == suggest(counts, dim=512, budget=4_000_000).bands
    line = bands.explain(counts)
    assert "\n" not in line and f"{bands.sizes[0]:,} words 512 wide" in line
    assert f"{weigh(bands, counts).params:,} parameters" in line


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dim", [1, 3, 64])
def test_suggests_bands_for_tiny_vocabularies(vocab_size, dim):
    bands = Bands.suggest(np.arange(vocab_size, 0, -1), dim=dim)
    assert bands.vocab_size == vocab_size and bands.dim == dim


def test_default_budget_allows_any_number_of_tails():
    counts = zipf(5_000)
    for tails in range(4):
        assert suggest(counts, dim=256, tails=tails).bands.num_tails == tails


def test_equal_widths_minimise_time():
    found = suggest(zipf(2_000), dim=64, factor=1, tails=1, costs=PLAIN)
    assert found.mean_width == pytest.approx(64)
    assert found.cost == min(
        weigh(Bands(2_000, (cut,), 64, 1), zipf(2_000), PLAIN).cost for cut in range(1, 2_000, 1)
    )


def test_special_tokens_can_be_unordered():
    assert Bands.suggest([0, 0, 50, 3, 900, 800, 20, 1, 0], dim=64).vocab_size == 9


def test_error_for_unordered_counts_explains_the_fix():
    ids = np.repeat(np.arange(9), [3, 1, 4, 1, 5, 9, 2, 6, 5])
    counts = np.bincount(ids)
    with pytest.raises(ValueError, match="counts: .*argsort") as error:
        Bands.suggest(counts, dim=64)
    order = np.argsort(counts)[::-1]
    assert all(part in str(error.value) for part in ("counts[order]", "np.argsort(order)[ids]"))
    assert np.array_equal(np.bincount(np.argsort(order)[ids]), counts[order])
    assert Bands.suggest(counts[order], dim=64).vocab_size == 9


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ([0, 0, 0], {}, "all are 0"),
        ([9, 8, 7, 6, 5, 1, 4], {}, "id 6 occurs 4 times, more than the id before"),
        ([9, 8, 7], {"tails": 3}, "tails=3"),
        ([9, 8, 7], {"dim": 3, "tails": 1}, "tails=1.*dim=3"),
        ([9, 8, 7], {"budget": 10}, "budget=10.*at least [0-9,]+ parameters"),
        ([9, 8, 7], {"dim": 0}, "dim=0"),
        ([9, 8, 7], {"factor": 0.5}, "factor=0.5"),
    ],
)
def test_rejects_impossible_requests(counts, options, message):
    with pytest.raises(ValueError, match=message):
        Bands.suggest(counts, **({"dim": 64} | options))


def test_rejects_wrong_number_of_counts():
    with pytest.raises(ValueError, match="got 3 for bands of 9 words"):
        weigh(Bands(9, (3,), 8), [3, 2, 1])
