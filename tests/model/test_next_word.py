"""The lazy choice of words against the whole distribution that `log_probs` computes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from zipflm import AdaptiveEmbedding, AdaptiveSoftmax, Bands, LanguageModel, Tie, preset
from zipflm.config import CharacterInput
from zipflm.model.all_words import AllWords
from zipflm.model.next_word import NextWord
from zipflm.model.outputs import FullSoftmax
from zipflm.presets import FACTORIZATIONS

BANDS = Bands(vocab_size=40, cutoffs=(8, 20), dim=8, factor=2)
RARE = Bands(vocab_size=40, cutoffs=(3, 4, 30), dim=8, factor=1)


pytestmark = pytest.mark.usefixtures("one_thread")


def adaptive(bands=BANDS, scale=1.0):
    softmax = AdaptiveSoftmax(bands).double().eval()
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.normal_(0, scale)
    return softmax


def with_class_scores(softmax, scores):
    """The layer with these logits for its tails wherever the hidden vector begins with 1."""
    with torch.no_grad():
        softmax.clusters.zero_()
        softmax.clusters[:, 0] = torch.tensor(scores, dtype=torch.float64)
    return softmax


def full(vocab_size=40):
    return FullSoftmax(vocab_size, 6, 8).double().eval()


def forbid(*ids, vocab_size=40):
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[list(ids)] = True
    return mask


def a_hidden(rows, dim=8):
    hidden = torch.randn(rows, dim, dtype=torch.float64)
    hidden[:, 0] = 1
    return hidden


def sorted_log_probs(output, hidden, forbidden=None):
    log_probs = output.log_probs(hidden).detach()
    if forbidden is not None:
        log_probs[:, forbidden] = -torch.inf
    return log_probs.sort(dim=1, descending=True, stable=True)


@settings(deadline=None, max_examples=60)
@given(
    st.sets(st.integers(1, 39), max_size=4),
    st.sampled_from([0, 0.1, 1, 3]),
    st.booleans(),
    st.integers(1, 40),
    st.sets(st.integers(0, 39), max_size=39),
    st.integers(1, 6),
    st.integers(0, 10**6),
)
def test_the_most_likely_words_are_those_of_the_whole_distribution(
    cutoffs, scale, ties, k, forbidden, rows, seed
):
    torch.manual_seed(seed)
    output = adaptive(Bands(40, tuple(sorted(cutoffs)), 8, 1), scale)
    hidden = a_hidden(rows)
    if ties:  # whole numbers: many words are exactly as likely as others
        hidden = hidden.round().clamp(-1, 1)
        with torch.no_grad():
            for parameter in output.parameters():
                parameter.copy_(parameter.sign() * (parameter.abs() > 0.5))
    mask = forbid(*forbidden)
    k = min(k, 40 - len(forbidden))
    log_probs, ids = NextWord(output, mask).most_likely(hidden, k)
    expected, expected_ids = sorted_log_probs(output, hidden, mask)
    assert_close(log_probs, expected[:, :k], 1e-12)
    assert torch.equal(ids, expected_ids[:, :k])


@pytest.mark.parametrize("k", [1, 7, 1000, 4000])
@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_every_factorization_knows_its_most_likely_words(factorization, k):
    config = preset("tiny", factorization)
    spellings = torch.randint(257, (4000, 50), dtype=torch.int16)
    needs = isinstance(config.input, CharacterInput)
    model = LanguageModel(config, spellings if needs else None).eval()
    k = min(k, config.vocab_size)
    with torch.no_grad():
        hidden = model(torch.randint(config.vocab_size, (3, 5)))[:, -1]
        log_probs, ids = NextWord(model.output).most_likely(hidden, k)
        whole = model.output.log_probs(hidden)
    assert_close(log_probs, whole.gather(1, ids), 1e-5)
    assert_close(log_probs, whole.sort(1, descending=True).values[:, :k], 1e-5)
    assert all(len(set(row.tolist())) == k for row in ids)


@pytest.mark.parametrize("tie", list(Tie))
def test_tied_layers_know_their_most_likely_words(tie):
    tied_to = AdaptiveEmbedding(BANDS).double() if tie != Tie.NONE else None
    output = AdaptiveSoftmax(BANDS, tied_to=tied_to, tie=tie).double().eval()
    hidden = a_hidden(4)
    log_probs, ids = NextWord(output).most_likely(hidden, 12)
    expected, expected_ids = sorted_log_probs(output, hidden)
    assert_close(log_probs, expected[:, :12], 1e-12)
    assert torch.equal(ids, expected_ids[:, :12])


def distribution(output, hidden, temperature=1.0, top_k=0, top_p=1.0, forbidden=None):
    """What is to be drawn from, computed from all words by the definitions."""
    log_probs, ids = sorted_log_probs(output, hidden, forbidden)
    weights = (log_probs / temperature).softmax(1)
    if top_k:
        weights[:, top_k:] = 0
    weights /= weights.sum(1, keepdim=True)
    weights[weights.cumsum(1) - weights >= top_p] = 0
    weights /= weights.sum(1, keepdim=True)
    return torch.zeros_like(weights).scatter(1, ids, weights)


def chance_of_a_worse_fit(counts, expected):
    """Pearson's chi-square test; words expected less than 5 times are counted as one."""
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum().view(1)])
    expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(float(len(counts) - 1), dtype=torch.float64)
    return 1.0 if freedom == 0 else torch.special.gammaincc(freedom / 2, statistic / 2).item()


OUTPUTS = {
    "likely head": lambda: with_class_scores(adaptive(), [-1.0, -2.0]),
    "likely tails": lambda: with_class_scores(adaptive(), [3.0, 4.0]),
    "small head": lambda: with_class_scores(adaptive(RARE), [1.0, 2.0, 3.0]),
    "flat": lambda: adaptive(scale=0.01),
    "full": full,
}
CHOICES = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for temperature, top_k, top_p in (
        (1.0, 0, 1.0),
        (0.5, 0, 1.0),
        (2.0, 0, 1.0),
        (1.0, 0, 0.9),
        (1.0, 0, 0.3),
        (0.5, 0, 0.9),
        (2.0, 0, 0.6),
        (0.8, 12, 1.0),
        (1.0, 3, 1.0),
        (1.5, 12, 0.7),
    )
]
# A word of the head, one in the middle of a tail and fillers at the end.
FORBIDDEN = {"none": None, "some": forbid(3, 10, 36, 37, 38, 39)}


@pytest.mark.parametrize("forbidden", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "-".join(map(str, choice.values())))
@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("chooser", [NextWord, AllWords])
def test_words_are_drawn_as_often_as_they_should(chooser, make, choice, forbidden):
    output, hidden, number = make(), a_hidden(1), 3000
    next_word = chooser(output, forbidden)
    generator = torch.Generator().manual_seed(7)
    ids, log_probs = next_word.draw(hidden.expand(number, -1), **choice, generator=generator)
    expected = distribution(output, hidden, **choice, forbidden=forbidden)[0]
    counts = ids.bincount(minlength=40).double()
    assert (counts[expected == 0] == 0).all()
    assert chance_of_a_worse_fit(counts, number * expected) > 1e-4
    assert_close(log_probs, output.log_probs(hidden)[0, ids], 1e-12)


def test_the_fit_notices_a_wrong_distribution():
    right = distribution(adaptive(), a_hidden(1))[0]
    wrong = right.clone()
    wrong[0], wrong[1] = right[0] + right[1], 0
    ids = torch.multinomial(wrong, 4000, replacement=True)
    assert chance_of_a_worse_fit(ids.bincount(minlength=40).double(), 4000 * right) < 1e-4


@settings(deadline=None, max_examples=40)
@given(
    st.sets(st.integers(1, 39), max_size=4),
    st.sampled_from([0.01, 0.5, 1.0, 1.3, 50.0]),
    st.sampled_from([0, 1, 5, 39]),
    st.sampled_from([1e-6, 0.2, 0.95, 1.0]),
    st.sets(st.integers(0, 39), max_size=39),
    st.integers(0, 10**6),
)
def test_no_word_is_drawn_that_cannot_be(cutoffs, temperature, top_k, top_p, forbidden, seed):
    torch.manual_seed(seed)
    output = adaptive(Bands(40, tuple(sorted(cutoffs)), 8, 1), 2.0)
    hidden, mask = a_hidden(50), forbid(*forbidden)
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    ids, log_probs = NextWord(output, mask).draw(hidden, **choice)
    possible = distribution(output, hidden, **choice, forbidden=mask)
    assert (possible.gather(1, ids.unsqueeze(1)) > 0).all()
    expected = output.log_probs(hidden).gather(1, ids.unsqueeze(1)).squeeze(1)
    assert_close(log_probs, expected, 1e-12)


def test_at_temperature_zero_the_most_likely_word_comes():
    output, hidden = adaptive(), a_hidden(30)
    ids, log_probs = NextWord(output).draw(hidden, temperature=0, top_p=0.5)
    expected, expected_ids = sorted_log_probs(output, hidden)
    assert torch.equal(ids, expected_ids[:, 0])
    assert_close(log_probs, expected[:, 0], 1e-12)


KINDS_OF_DRAWS = [{}, {"top_k": 3}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.5}]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("choice", KINDS_OF_DRAWS, ids=str)
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-20])
def test_colder_than_numbers_reach_is_as_cold_as_zero(temperature, choice):
    next_word, hidden = NextWord(adaptive().float(), forbid(0, 30)), a_hidden(50).float()
    ids, log_probs = next_word.draw(hidden, temperature=temperature, **choice)
    expected_ids, expected = next_word.draw(hidden, temperature=0)
    assert torch.equal(ids, expected_ids) and torch.equal(log_probs, expected)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("choice", KINDS_OF_DRAWS, ids=str)
@pytest.mark.parametrize("temperature", [1e39, 1e300])
def test_hotter_than_numbers_reach_draws_all_words_alike(temperature, choice):
    next_word = NextWord(adaptive().float(), forbid(0, 30))
    hidden = a_hidden(1).float().expand(4_000, -1)
    ids, _ = next_word.draw(hidden, temperature=temperature, **choice)
    counts = ids.bincount(minlength=40)
    number = {0: 38, 3: 3}[choice.get("top_k", 0)]
    expected = math.ceil(number * choice.get("top_p", 1))
    assert not counts[[0, 30]].any() and (counts > 0).sum() == expected
    assert counts.max() < 1.7 * len(ids) / expected


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "-".join(map(str, choice.values())))
def test_a_peaked_distribution_opens_no_tail(choice, monkeypatch):
    output, hidden = with_class_scores(adaptive(scale=2), [-60.0, -60.0]), a_hidden(50)
    monkeypatch.setattr(output, "tail_log_probs", None)  # whoever calls it fails
    next_word = NextWord(output, FORBIDDEN["some"])
    next_word.most_likely(hidden, 7)  # of the head's eight words one is forbidden
    next_word.draw(hidden, **choice | {"top_k": min(choice["top_k"], 7)})
    assert next_word.openings.tails == next_word.openings.calls_with_tails == 0


def test_a_plain_draw_opens_a_tail_only_for_a_word_in_it():
    output, hidden = with_class_scores(adaptive(), [1.0, 2.0]), a_hidden(300)
    next_word = NextWord(output)
    ids, _ = next_word.draw(hidden)
    in_tails = int((ids >= 8).sum())
    assert 50 < in_tails < 250
    opened = next_word.openings
    assert (opened.calls, opened.calls_with_tails, opened.rows) == (1, 1, 300)
    assert opened.tails == in_tails


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.2])
def test_a_nucleus_does_not_open_tails_that_decide_nothing(temperature):
    """Tails hold 2% of the mass each: most words are certain to be inside without them."""
    output = with_class_scores(adaptive(scale=0.3), [-1.8, -1.8])
    next_word = NextWord(output)
    next_word.draw(a_hidden(1000), temperature=temperature, top_p=0.8)
    assert 0 < next_word.openings.tails < 500


def test_one_of_the_likeliest_is_drawn_without_knowing_all_of_them():
    """The tails are likelier than the fifth word, so that most of the rows would open them."""
    output = with_class_scores(adaptive(scale=0.5), [-1.0, -1.0])
    next_word, listing = NextWord(output), NextWord(output)
    next_word.draw(a_hidden(1000), top_k=5)
    listing.most_likely(a_hidden(1000), 5)
    assert 0 < next_word.openings.tails < 0.5 * listing.openings.tails


def test_a_row_does_not_depend_on_other_rows():
    output = with_class_scores(adaptive(), [1.0, 1.0])
    hidden = a_hidden(20)
    others = hidden.clone()
    others[1:] = 3 * a_hidden(19)
    for choice in CHOICES:
        drawn = [
            NextWord(output).draw(h, **choice, generator=torch.Generator().manual_seed(seed))
            for seed in range(5)
            for h in (hidden, others)
        ]
        for (ids, log_probs), (other_ids, other_log_probs) in zip(
            drawn[::2], drawn[1::2], strict=True
        ):
            assert ids[0] == other_ids[0]
            assert_close(log_probs[:1], other_log_probs[:1], 1e-12)


def test_the_same_seed_draws_the_same_words():
    next_word, hidden = NextWord(adaptive()), a_hidden(100)
    first, second, third = (
        next_word.draw(hidden, top_p=0.9, generator=torch.Generator().manual_seed(seed))[0]
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


class NumberOfOperations(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


def test_ten_times_the_rows_take_hardly_more_operations():
    next_word = NextWord(with_class_scores(adaptive(scale=0.1), [0.0, 0.0]))
    numbers = []
    for rows in (200, 2000):
        with NumberOfOperations() as operations:
            next_word.most_likely(a_hidden(rows), 20)
            next_word.draw(a_hidden(rows), temperature=0.8)
        numbers.append(operations.number)
    assert numbers[1] < 1.3 * numbers[0]  # a tail may be opened once more


def test_low_precision_keeps_log_probabilities_in_float32():
    output = adaptive().to(torch.bfloat16)
    hidden = a_hidden(10).to(torch.bfloat16)
    log_probs, ids = NextWord(output).most_likely(hidden, 30)
    assert log_probs.dtype == torch.float32
    assert_close(log_probs, output.log_probs(hidden).detach().gather(1, ids), 1e-5)
    assert NextWord(output).draw(hidden, top_p=0.9)[1].dtype == torch.float32


def test_no_rows_give_no_words():
    next_word, hidden = NextWord(adaptive()), a_hidden(0)
    assert next_word.most_likely(hidden, 3)[1].shape == (0, 3)
    for choice in CHOICES:
        assert next_word.draw(hidden, **choice)[0].shape == (0,)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: give 0 for the most likely"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_k": -1}, "top_k=-1: give a number of words"),
        ({"top_p": 0.0}, "top_p=0.0: give a share"),
        ({"top_p": 1.1}, "top_p=1.1"),
    ],
)
def test_choices_that_make_no_sense_are_refused(choice, message):
    with pytest.raises(ValueError, match=message):
        NextWord(adaptive()).draw(a_hidden(1), **choice)


def test_what_cannot_be_chosen_from_is_refused_by_name():
    output = adaptive()
    with pytest.raises(ValueError, match="k=41: there are 40 words to choose from"):
        NextWord(output).most_likely(a_hidden(1), 41)
    with pytest.raises(ValueError, match="k=35: there are 34 words to choose from"):
        NextWord(output, FORBIDDEN["some"]).most_likely(a_hidden(1), 35)
    with pytest.raises(ValueError, match="forbidden: all 40 words are"):
        NextWord(output, forbid(*range(40)))
    with pytest.raises(ValueError, match=r"forbidden: torch.bool of shape \(7,\).*40 words"):
        NextWord(output, forbid(1, vocab_size=7))
    with pytest.raises(ValueError, match=r"hidden.shape=\(1, 2, 8\): give rows of width 8"):
        NextWord(output).most_likely(torch.zeros(1, 2, 8), 1)
    with pytest.raises(ValueError, match="in training mode.*model.eval"):
        output.tail_dropout = 0.1
        NextWord(output.train()).draw(a_hidden(1))


@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}, {"top_k": 5}, {"top_k": 9, "top_p": 0.7}])
def test_with_a_generator_of_its_own_a_row_gets_the_word_that_it_gets_alone(options):
    model = LanguageModel(preset("tiny", "ADP-T")).eval()
    hidden = torch.randn(6, model.config.decoder.dim)
    for chooser in (NextWord(model.output), AllWords(model.output)):
        own = [torch.Generator().manual_seed(row) for row in range(6)]
        together = [chooser.draw(hidden, generator=own, **options)[0] for _ in range(5)]
        for row in range(6):
            generator = torch.Generator().manual_seed(row)
            for ids in together:
                alone, _ = chooser.draw(hidden[row : row + 1], generator=generator, **options)
                assert alone.item() == ids[row].item()
