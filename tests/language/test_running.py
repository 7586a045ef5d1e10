"""Lines scored while they come get the numbers that `evaluate` gives the whole text."""

import numpy as np
import pytest
from loaded_models import loaded
from small_data import sentences

from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.data.token_file import TokenArray
from zipflm.evaluation.scoring import score
from zipflm.language import score_command
from zipflm.language.score_command import RunningLines


@pytest.fixture(scope="module")
def small(word_data):
    return loaded(word_data, batch_tokens=32)


def lines_of(lm, number):
    return [lm.reader.line(line).ids for line in sentences(9, number)]


@pytest.mark.parametrize("break_mode", ["none", "complete", "sentence"])
@pytest.mark.parametrize(
    ("block", "context", "batches"), [(16, 0, 3), (16, 5, 1), (9, 8, 1), (40, 20, 1000)]
)
def test_a_stream_is_scored_as_evaluate_scores_it(
    small, monkeypatch, break_mode, block, context, batches
):
    monkeypatch.setattr(score_command, "_BATCHES", batches)
    lines = lines_of(small, 40)
    blocks = Blocks(break_mode=break_mode, block=block, context=context)
    tokens = TokenArray(np.concatenate(lines), np.cumsum([0, *map(len, lines)]))
    plan = Batches(tokens, blocks, max_tokens=64, shuffle=False)
    ends_word = np.ones(len(small.vocabulary), dtype=bool)
    expected = score(small.model, plan, device="cpu", ends_word=ends_word).nll
    stream = RunningLines(small.engine, blocks, np.zeros(0, dtype=np.int64))
    found, held = [], 0
    for number, ids in enumerate(lines, start=1):
        found += list(stream.add(ids))
        held = max(held, number - len(found))
    found += list(stream.finish())
    assert [len(nll) for nll in found] == [len(ids) for ids in lines]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)
    assert batches > 1 or held < 20  # it does not wait for the end


def test_a_prefix_stands_before_the_first_line(small):
    lines = lines_of(small, 3)
    blocks = Blocks(break_mode="none", block=64, context=0)
    prefix = lines[0]
    stream = RunningLines(small.engine, Blocks(break_mode="none", block=64, context=32), prefix)
    behind = [*stream.add(lines[1]), *stream.finish()]
    whole = RunningLines(small.engine, blocks, np.zeros(0, dtype=np.int64))
    both = [*whole.add(prefix), *whole.add(lines[1]), *whole.finish()]
    np.testing.assert_allclose(behind[0], both[1], atol=1e-5)


def test_no_line_is_no_score(small):
    stream = RunningLines(
        small.engine, Blocks(break_mode="none", block=8), np.zeros(0, dtype=np.int64)
    )
    assert list(stream.finish()) == []
