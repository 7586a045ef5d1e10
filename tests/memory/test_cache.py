import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory_reference import with_cache

from zipflm.memory.cache import Cache, CacheSettings
from zipflm.memory.mixing import MemoryStream, Mixture

V, D = 11, 6


def text(number, seed=0):
    draw = np.random.default_rng(seed)
    hidden = draw.normal(size=(number, D)).astype(np.float32)
    logits = draw.normal(size=(number, V))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return hidden, draw.integers(4, V, number), probs


def scored(memories, hidden, words, probs, sizes, begins=None):
    """nll and all probabilities, read in batches of these sizes."""
    stream = MemoryStream(memories).set_tokens(words, begins)
    nll, table, low = [], [], 0
    for size in [*sizes, len(words) - sum(sizes)]:
        rows, low = slice(low, low + size), low + size
        at, log_probs = torch.from_numpy(words[rows]), torch.from_numpy(np.log(probs[rows])).float()
        mixture = stream.lookup(
            torch.from_numpy(hidden[rows]), at, np.arange(rows.start, rows.stop)
        )
        nll.append(mixture.nll(-log_probs.gather(1, at[:, None])[:, 0], at))
        table.append(mixture.log_probs(log_probs))
    return torch.cat(nll).numpy(), torch.cat(table).exp().numpy()


@pytest.mark.parametrize("window", [None, 1, 7, 300])
@pytest.mark.parametrize("sizes", [(), (1, 2, 150), (100, 299)])
def test_equals_the_definition_in_batches_of_any_size(window, sizes):
    hidden, words, probs = text(400)
    begins = np.array([0, 50, 51, 260])
    settings = CacheSettings(window=window, weight=0.3, temperature=0.2)
    nll, table = scored([Cache(settings)], hidden, words, probs, sizes, begins)
    expected = with_cache(
        probs, hidden, words, window=window, weight=0.3, temperature=0.2, begins=begins
    )
    np.testing.assert_allclose(table, expected, atol=1e-6)
    np.testing.assert_allclose(table.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(np.exp(-nll), expected[np.arange(400), words], atol=1e-6)


@given(st.integers(0, 59), st.integers(4, V - 1), st.integers(0, 5), st.sampled_from([None, 3]))
def test_does_not_see_the_predicted_or_later_words(place, word, seed, window):
    hidden, words, probs = text(60, seed)
    changed_hidden, changed = hidden.copy(), words.copy()
    changed[place] = word
    changed_hidden[place + 1 :] *= -1
    caches = [Cache(CacheSettings(window=window, reset=reset)) for reset in ("none", "line")]
    nll, table = scored(caches, hidden, words, probs, (20, 20))
    nll_after, table_after = scored(caches, changed_hidden, changed, probs, (20, 20))
    np.testing.assert_array_equal(nll[:place], nll_after[:place])
    np.testing.assert_array_equal(table[: place + 1], table_after[: place + 1])


@pytest.mark.parametrize("window", [None, 1, 5])
def test_parallel_rows_equal_the_stream(window):
    """While rows join and leave."""
    lengths, prompts = (30, 20, 25, 12), (4, 0, 9, 2)
    texts = [text(length, seed) for seed, length in enumerate(lengths)]
    cache = Cache(CacheSettings(window=window, weight=0.4, temperature=0.3))
    rows, alive, at = cache.rows(), [], dict(enumerate(prompts))

    def join(numbers):
        begun = [(texts[n][0][: prompts[n]], texts[n][1][: prompts[n]]) for n in numbers]
        rows.join(*([torch.from_numpy(each) for each in part] for part in zip(*begun, strict=True)))
        alive.extend(numbers)

    join([0, 1])
    for step in range(31):
        if step == 3:
            join([2, 3])
        left = [place for place, n in enumerate(alive) if at[n] < lengths[n]]
        if len(left) < len(alive):
            rows.keep(left, torch.tensor(left, dtype=torch.int64))
            alive = [alive[place] for place in left]
        if not alive:
            break
        hidden = torch.stack([torch.from_numpy(texts[n][0][at[n]]) for n in alive])
        probs = torch.stack([torch.from_numpy(texts[n][2][at[n]]) for n in alive])
        mixture = Mixture([cache], [rows.lookup(hidden)])
        found = mixture.log_probs(probs.log().float()).exp().numpy()
        for n, row in zip(alive, found, strict=True):
            of_text = with_cache(
                *(texts[n][i] for i in (2, 0, 1)), window=window, weight=0.4, temperature=0.3
            )
            np.testing.assert_allclose(row, of_text[at[n]], atol=1e-6)
        rows.add(hidden, torch.tensor([texts[n][1][at[n]] for n in alive]))
        at = {n: place + (n in alive) for n, place in at.items()}


def test_rows_are_not_as_long_as_rows_that_left():
    rows = Cache(CacheSettings(window=None)).rows()
    rows.join([torch.randn(5_000, D)], [torch.full((5_000,), 4)])
    rows.keep([], torch.tensor([], dtype=torch.int64))
    rows.join([torch.randn(5, D)], [torch.full((5,), 4)])
    assert rows.lookup(torch.randn(1, D)).cosines_NK.numel() < 100


def test_resets_after_lines_blank_lines_and_headings():
    ids = np.array([2, 7, 8, 2, 2, 5, 8, 5, 2, 5, 5, 8, 2, 9])

    def document_ends(reset):
        return np.flatnonzero(Cache(CacheSettings(reset=reset), 5).document_ends(ids)).tolist()

    assert document_ends("none") == []
    assert document_ends("line") == [0, 3, 4, 8, 12]
    assert document_ends("blank") == [0, 4]
    assert document_ends("heading") == [8]
    with pytest.raises(ValueError, match="the vocabulary has no ="):
        Cache(CacheSettings(reset="heading"))


def test_a_heading_can_be_read_in_two_calls():
    cache = Cache(CacheSettings(reset="heading"), 5)
    stream = MemoryStream([cache]).set_tokens(np.array([7, 2, 5, 8]))
    stream.set_tokens(np.array([8, 2, 9, 9]))
    assert stream._is_start[0].tolist() == [False, False, True, False]
