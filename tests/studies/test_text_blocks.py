"""Blocks cover the text in whole lines or documents, as long as its dependence asks for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zipflm.studies.statistics import NUMBERS, cut_into_blocks, document_starts

NONE = np.zeros(0, dtype=np.int64)


def lines_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=400))
def test_blocks_are_whole_lines_in_order_and_cover_every_word(lengths: list[int]) -> None:
    starts = lines_of(lengths)
    losses = np.random.default_rng(0).random(sum(lengths))
    blocks = cut_into_blocks(starts, NONE, losses[None])
    assert set(blocks.starts) <= set(starts) and blocks.starts[0] == 0
    assert 1 <= len(blocks) <= NUMBERS[0]
    of_word = blocks.of_word
    assert len(of_word) == sum(lengths) and (np.diff(of_word) >= 0).all()
    assert len(np.unique(of_word)) == len(blocks)


def test_independent_lines_make_as_many_blocks_as_there_may_be() -> None:
    losses = np.random.default_rng(0).random(30_000)
    blocks = cut_into_blocks(np.arange(0, 30_000, 10), NONE, losses[None])
    assert len(blocks) == NUMBERS[0] and not blocks.are_alike
    assert blocks.describe() == "30 blocks of whole lines, about 1,000 words each"


def test_a_text_that_drifts_from_end_to_end_is_said_to_be_alike() -> None:
    blocks = cut_into_blocks(np.arange(0, 30_000, 10), NONE, np.linspace(0, 1, 30_000)[None])
    assert len(blocks) == NUMBERS[-1] and blocks.are_alike
    assert "which widens the intervals" in blocks.describe()


WORDS = ["<s>", "<pad>", "</s>", "<unk>", "=", "Boulter", "Career", "the"]


def line(*words: str) -> list[int]:
    return [WORDS.index(word) for word in (*words, "</s>")]


def test_documents_begin_at_headings_in_wikitexts_manner() -> None:
    text = [line("=", "Boulter", "="), line("the", "="), line("=", "=", "Career", "=", "="), line()]
    text += [line("=", "the", "Career", "="), line("=", "the"), line("the")]
    starts = lines_of([len(words) for words in text])
    ids = np.array([word for words in text for word in words])
    found = document_starts(starts, ids, WORDS)
    assert found.tolist() == [starts[0], starts[4]]
    assert document_starts(starts, ids, ["a", "b"]).tolist() == []


def test_blocks_are_whole_documents_where_there_are_enough() -> None:
    lines, headings = np.arange(0, 30_000, 10), np.arange(0, 30_000, 700)
    losses = np.random.default_rng(0).random(30_000)
    blocks = cut_into_blocks(lines, headings, losses[None])
    assert blocks.unit == "documents" and set(blocks.starts) <= set(headings)
    few = cut_into_blocks(lines, headings[:3], losses[None])
    assert few.unit == "lines"
