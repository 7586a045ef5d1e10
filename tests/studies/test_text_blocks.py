"""Cutting a text into blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zipflm.studies.statistics import NUM_BLOCKS, cut_into_blocks, document_starts

NONE = np.zeros(0, dtype=np.int64)


def lines_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=400))
def test_blocks_are_whole_lines_and_cover_the_text(lengths):
    starts = lines_of(lengths)
    blocks = cut_into_blocks(starts, NONE, sum(lengths))
    assert set(blocks.starts) <= set(starts) and blocks.starts[0] == 0
    assert 1 <= len(blocks) <= NUM_BLOCKS
    of_word = blocks.block_of_word
    assert len(of_word) == sum(lengths) and (np.diff(of_word) >= 0).all()
    assert len(np.unique(of_word)) == len(blocks)


def test_long_texts_have_blocks_of_equal_size():
    blocks = cut_into_blocks(np.arange(0, 30_000, 10), NONE, 30_000)
    assert blocks.starts.tolist() == list(range(0, 30_000, 1000))
    assert blocks.describe() == "30 blocks of whole lines, about 1,000 words each"


WORDS = ["<s>", "<pad>", "</s>", "<unk>", "=", "Boulter", "Career", "the"]


def line(*words):
    return [WORDS.index(word) for word in (*words, "</s>")]


def test_documents_start_at_wikitext_headings():
    text = [line("=", "Boulter", "="), line("the", "="), line("=", "=", "Career", "=", "="), line()]
    text += [line("=", "the", "Career", "="), line("=", "the"), line("the")]
    starts = lines_of([len(words) for words in text])
    ids = np.array([word for words in text for word in words])
    found = document_starts(starts, ids, WORDS)
    assert found.tolist() == [starts[0], starts[4]]
    assert document_starts(starts, ids, ["a", "b"]).tolist() == []


def test_blocks_are_whole_documents():
    lines, headings = np.arange(0, 30_000, 10), np.arange(0, 30_000, 700)
    blocks = cut_into_blocks(lines, headings, 30_000)
    assert blocks.unit == "documents" and set(blocks.starts) <= set(headings)
    few = cut_into_blocks(lines, headings[:3], 30_000)
    assert few.unit == "lines"
