"""Next-word predictions and samples, compared with the distribution of `log_probs`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import assert_close

from zipflm import AdaptiveSoftmax, Bands, LanguageModel, preset
from zipflm.config import CharacterInput
from zipflm.model import sampling
from zipflm.model.outputs import FullSoftmax
from zipflm.model.sampling import NUM_TRIES, draw, draw_columns, most_likely
from zipflm.presets import FACTORIZATIONS

BANDS = Bands(vocab_size=40, cutoffs=(8, 20), dim=8, factor=2)

pytestmark = pytest.mark.usefixtures("one_thread")


def adaptive(bands=BANDS, scale=1.0):
    softmax = AdaptiveSoftmax(bands).double().eval()
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.normal_(0, scale)
    return softmax


def full():
    return FullSoftmax(40, 6, 8).double().eval()


def random_hidden(rows):
    return torch.randn(rows, 8, dtype=torch.float64)


def sorted_log_probs(output, hidden, forbidden=None):
    log_probs = output.log_probs(hidden).detach()
    if forbidden is not None:
        log_probs[:, forbidden] = -torch.inf
    return log_probs.sort(dim=1, descending=True, stable=True)


@settings(max_examples=60)
@given(
    st.sets(st.integers(1, 39), max_size=4),
    st.sampled_from([0, 0.1, 1, 3]),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(0, 10**6),
)
def test_most_likely_matches_sorted_distribution(cutoffs, scale, ties, k, rows, seed):
    torch.manual_seed(seed)
    output = adaptive(Bands(40, tuple(sorted(cutoffs)), 8, 1), scale)
    hidden = random_hidden(rows)
    if ties:  # whole numbers give many words the same probability
        hidden = hidden.round().clamp(-1, 1)
        with torch.no_grad():
            for parameter in output.parameters():
                parameter.copy_(parameter.sign() * (parameter.abs() > 0.5))
    log_probs, ids = most_likely(output, hidden, k)
    expected, expected_ids = sorted_log_probs(output, hidden)
    assert_close(log_probs, expected[:, :k], 1e-12)
    assert torch.equal(ids, expected_ids[:, :k])


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_most_likely_works_for_every_factorization(factorization):
    config = preset("tiny", factorization)
    spellings = torch.randint(257, (4000, 50), dtype=torch.int16)
    needs = isinstance(config.input, CharacterInput)
    model = LanguageModel(config, spellings if needs else None).eval()
    with torch.no_grad():
        hidden = model(torch.randint(config.vocab_size, (3, 5)))[:, -1]
        log_probs, ids = most_likely(model.output, hidden, 7)
        whole = model.output.log_probs(hidden)
    assert_close(log_probs, whole.gather(1, ids), 1e-5)
    assert_close(log_probs, whole.sort(1, descending=True).values[:, :7], 1e-5)


def distribution(output, hidden, temperature=1.0, top_k=0, top_p=1.0, forbidden=None):
    """The distribution to draw from, by definition."""
    log_probs, ids = sorted_log_probs(output, hidden, forbidden)
    weights = (log_probs / temperature).softmax(1)
    if top_k:
        weights[:, top_k:] = 0
    weights /= weights.sum(1, keepdim=True)
    weights[weights.cumsum(1) - weights >= top_p] = 0
    weights /= weights.sum(1, keepdim=True)
    return torch.zeros_like(weights).scatter(1, ids, weights)


def p_value(counts, expected):
    """p-value of Pearson's chi-square test; words expected less than 5 times are merged."""
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum().view(1)])
    expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(float(len(counts) - 1), dtype=torch.float64)
    return 1.0 if freedom == 0 else torch.special.gammaincc(freedom / 2, statistic / 2).item()


CHOICES = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for temperature, top_k, top_p in (
        (1.0, 0, 1.0),
        (0.5, 0, 1.0),
        (2.0, 0, 1.0),
        (1.0, 0, 0.9),
        (0.5, 0, 0.3),
        (2.0, 0, 0.6),
        (0.8, 12, 1.0),
        (1.5, 12, 0.7),
    )
]
# A word of the head, one of a tail, and fillers at the end.
FORBIDDEN = {"none": None, "some": torch.tensor([3, 10, 36, 37, 38, 39])}


@pytest.mark.parametrize("tries", [8, 2])
@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "-".join(map(str, choice.values())))
@pytest.mark.parametrize("make", [adaptive, full])
def test_draws_follow_the_distribution(make, choice, forbidden, tries, monkeypatch):
    monkeypatch.setattr(sampling, "NUM_TRIES", tries)
    output, hidden, number = make(), random_hidden(1), 3000
    torch.manual_seed(7)
    ids, log_probs = draw(output, hidden.expand(number, -1), **choice, forbidden=forbidden)
    expected = distribution(output, hidden, **choice, forbidden=forbidden)[0]
    counts = ids.bincount(minlength=40).double()
    assert (counts[expected == 0] == 0).all()
    assert p_value(counts, number * expected) > 1e-4
    assert_close(log_probs, output.log_probs(hidden)[0, ids], 1e-12)


def test_chi_square_detects_a_wrong_distribution():
    right = distribution(adaptive(), random_hidden(1))[0]
    wrong = right.clone()
    wrong[0], wrong[1] = right[0] + right[1], 0
    ids = torch.multinomial(wrong, 4000, replacement=True)
    assert p_value(ids.bincount(minlength=40).double(), 4000 * right) < 1e-4


@settings(max_examples=40)
@given(
    st.sets(st.integers(1, 39), max_size=4),
    st.sampled_from([0.01, 0.5, 1.0, 1.3, 50.0]),
    st.sampled_from([0, 1, 5, 39]),
    st.sampled_from([1e-6, 0.2, 0.95, 1.0]),
    st.sets(st.integers(0, 39), max_size=39),
    st.integers(0, 10**6),
)
def test_never_draws_excluded_words(cutoffs, temperature, top_k, top_p, forbidden, seed):
    torch.manual_seed(seed)
    output = adaptive(Bands(40, tuple(sorted(cutoffs)), 8, 1), 2.0)
    hidden, banned = random_hidden(50), torch.tensor(list(forbidden), dtype=torch.int64)
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    ids, _ = draw(output, hidden, **choice, forbidden=banned)
    possible = distribution(output, hidden, **choice, forbidden=banned)
    assert (possible.gather(1, ids.unsqueeze(1)) > 0).all()


FILTERS = [{}, {"top_k": 3}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.5}]


@pytest.mark.parametrize("choice", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-20])
def test_temperature_zero_is_greedy(temperature, choice):
    output, hidden, banned = adaptive().float(), random_hidden(50).float(), torch.tensor([0, 30])
    ids, log_probs = draw(output, hidden, temperature=temperature, forbidden=banned, **choice)
    expected, expected_ids = sorted_log_probs(output, hidden, banned)
    assert torch.equal(ids, expected_ids[:, 0])
    assert_close(log_probs, expected[:, 0], 1e-6)


@pytest.mark.parametrize("choice", FILTERS, ids=str)
def test_extreme_temperature_is_uniform(choice):
    hidden = random_hidden(1).float().expand(4_000, -1)
    banned = torch.tensor([0, 30])
    ids, _ = draw(adaptive().float(), hidden, temperature=1e300, forbidden=banned, **choice)
    counts = ids.bincount(minlength=40)
    number = {0: 38, 3: 3}[choice.get("top_k", 0)]
    expected = math.ceil(number * choice.get("top_p", 1))
    assert not counts[[0, 30]].any() and (counts > 0).sum() == expected
    assert counts.max() < 1.7 * len(ids) / expected


@pytest.mark.parametrize("choice", FILTERS, ids=str)
def test_draws_do_not_depend_on_other_rows(choice, monkeypatch):
    monkeypatch.setattr(sampling, "_CPU_ROWS", 4)
    output, hidden = adaptive(), random_hidden(6)
    for _ in range(5):
        numbers = torch.rand(6, NUM_TRIES).tolist()
        together, _ = draw(output, hidden, uniform=numbers, **choice)
        for row, number in enumerate(numbers):
            alone, _ = draw(output, hidden[row : row + 1], uniform=[number], **choice)
            assert alone.item() == together[row].item()


def test_log_probs_are_float32_in_low_precision():
    output, hidden = adaptive().to(torch.bfloat16), random_hidden(10).to(torch.bfloat16)
    assert most_likely(output, hidden, 30)[0].dtype == torch.float32
    assert draw(output, hidden, top_p=0.9)[1].dtype == torch.float32


def test_accepts_empty_batches():
    assert most_likely(adaptive(), random_hidden(0), 3)[1].shape == (0, 3)
    for choice in CHOICES:
        assert draw(adaptive(), random_hidden(0), **choice)[0].shape == (0,)


@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.5, 1 - 2**-53])
def test_never_draws_zero_probability(uniform):
    scores = torch.full((1, 9), -torch.inf)
    scores[0, 2] = scores[0, 6] = 0.0
    place = draw_columns(scores, torch.tensor([uniform], dtype=torch.float64))
    assert place.item() in (2, 6)


def test_draw_columns_inverts_the_cumulative_distribution():
    scores = torch.tensor([0.5, 0.125, 0.375]).log()
    numbers = (torch.arange(800, dtype=torch.float64) + 0.5) / 800
    places = draw_columns(scores.expand(800, 3), numbers)
    assert places.bincount().tolist() == [400, 100, 300]
