"""Cutting a text into blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zipflm.studies.statistics import BLOCK_COUNTS, cut_into_blocks, document_starts

NONE = np.zeros(0, dtype=np.int64)


def lines_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=400))
def test_blocks_are_whole_lines_and_cover_the_text(lengths):
    starts = lines_of(lengths)
    losses = np.random.default_rng(0).random(sum(lengths))
    blocks = cut_into_blocks(starts, NONE, losses[None])
    assert set(blocks.starts) <= set(starts) and blocks.starts[0] == 0
    assert 1 <= len(blocks) <= BLOCK_COUNTS[0]
    of_word = blocks.block_of_word
    assert len(of_word) == sum(lengths) and (np.diff(of_word) >= 0).all()
    assert len(np.unique(of_word)) == len(blocks)


def test_independent_lines_give_the_most_blocks():
    losses = np.random.default_rng(0).random(30_000)
    blocks = cut_into_blocks(np.arange(0, 30_000, 10), NONE, losses[None])
    assert len(blocks) == BLOCK_COUNTS[0] and not blocks.are_correlated
    assert blocks.describe() == "30 blocks of whole lines, about 1,000 words each"


def test_drifting_text_has_correlated_blocks():
    blocks = cut_into_blocks(np.arange(0, 30_000, 10), NONE, np.linspace(0, 1, 30_000)[None])
    assert len(blocks) == BLOCK_COUNTS[-1] and blocks.are_correlated
    assert "which widens the intervals" in blocks.describe()


WORDS = ["<s>", "<pad>", "</s>", "<unk>", "=", "Boulter", "Career", "the"]


def line(*words):
    return [WORDS.index(word) for word in (*words, "</s>")]


def test_documents_start_at_wikitext_headings():
    text = [line("=", "Boulter", "="), line("the", "="), line("=", "=", "Career", "=", "="), line()]
    text += [line("=", "the", "Career", "="), line("=", "the"), line("the")]
    starts = lines_of([len(words) for words in text])
    ids = np.array([word for words in text for word in words])
    found = document_starts(starts, ids, WORDS.index("="))
    assert found.tolist() == [starts[0], starts[4]]
    assert document_starts(starts, ids, None).tolist() == []


def test_blocks_are_whole_documents():
    lines, headings = np.arange(0, 30_000, 10), np.arange(0, 30_000, 700)
    losses = np.random.default_rng(0).random(30_000)
    blocks = cut_into_blocks(lines, headings, losses[None])
    assert blocks.unit == "documents" and set(blocks.starts) <= set(headings)
    few = cut_into_blocks(lines, headings[:3], losses[None])
    assert few.unit == "lines"
