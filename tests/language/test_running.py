"""Consecutive lines get the scores that `evaluate` gives the whole text."""

from dataclasses import replace

import numpy as np
import pytest
from loaded_models import loaded
from small_data import sentences

from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.data.token_file import TokenArray
from zipflm.evaluation.scoring import score
from zipflm.language.engine import scored_lines


@pytest.fixture(scope="module")
def small(word_data):
    return loaded(word_data, batch_tokens=32)


NOTHING = np.zeros(0, dtype=np.int64)


def lines_of(lm, number):
    return [lm.reader.line(line) for line in sentences(9, number)]


@pytest.mark.parametrize("break_mode", ["none", "complete", "sentence"])
@pytest.mark.parametrize(
    ("block", "context", "batch_tokens"), [(16, 0, 32), (16, 5, 1), (9, 8, 9), (40, 20, 4000)]
)
def test_matches_evaluate(small, break_mode, block, context, batch_tokens):
    lines = lines_of(small, 40)
    ids = [line.ids for line in lines]
    blocks = Blocks(break_mode=break_mode, block=block, context=context)
    tokens = TokenArray(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))
    plan = Batches(tokens, blocks, max_tokens=64, shuffle=False)
    ends_word = np.ones(len(small.vocabulary), dtype=bool)
    expected = score(small.model, plan, device="cpu", ends_word=ends_word).nll
    engine, reading = replace(small.engine, batch_tokens=batch_tokens), iter(lines)
    found, held = [], 0
    for group in scored_lines(engine, reading, NOTHING, blocks):
        held = max(held, len(lines) - reading.__length_hint__() - len(found))
        found += group
    assert all(one.text is line for one, line in zip(found, lines, strict=True))
    assert [len(one.nll) for one in found] == [len(line.ids) for line in lines]
    np.testing.assert_allclose(np.concatenate([one.nll for one in found]), expected, atol=1e-5)
    assert batch_tokens > 9 or held < 20  # does not read to the end first


def test_prefix(small):
    first, second, _ = lines_of(small, 3)
    blocks = Blocks(break_mode="none", block=64, context=32)
    ((after,),) = scored_lines(small.engine, [second], first.ids, blocks)
    ((_, both),) = scored_lines(small.engine, [first, second], NOTHING, blocks)
    np.testing.assert_allclose(after.nll, both.nll, atol=1e-5)


@pytest.mark.parametrize("break_mode", ["none", "complete", "sentence"])
def test_no_lines(small, break_mode):
    blocks = Blocks(break_mode=break_mode, block=8)
    assert [*scored_lines(small.engine, [], NOTHING, blocks)] == []
