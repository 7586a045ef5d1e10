"""Batches with break mode `stream`, where every row continues the row of the batch before."""

import numpy as np
import pytest

from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.data.token_file import TokenArray


def batches_of(total, block, max_tokens, **options):
    tokens = TokenArray.of([np.arange(4, 4 + total)])
    blocks = Blocks(break_mode="stream", block=block)
    return Batches(tokens, blocks, max_tokens=max_tokens, shuffle=True, seed=3, **options)


@pytest.mark.parametrize(
    ("total", "block", "max_tokens", "streams"),
    [(100, 5, 20, 0), (101, 5, 20, 8), (7, 2, 8, 0), (5, 3, 12, 8), (64, 4, 16, 4)],
)
def test_stream_rows_continue_each_other(total, block, max_tokens, streams):
    batches = batches_of(total, block, max_tokens, streams=streams)
    rows = max_tokens // block
    groups = (streams or rows) // rows
    scored, last = [], {}
    for number, batch in enumerate(batches.epoch(0)):
        assert len(batch.words) == rows
        for row in range(rows):
            targets = batch.targets[row][batch.scored[row]].tolist()
            scored += targets
            if targets:
                key = number % groups, row
                # The first input of a block is the last target of the block before it.
                assert batch.words[row, 0] == last.get(key, batch.words[row, 0])
                last[key] = targets[-1]
    assert sorted(scored) == list(range(4, 4 + total))
    assert len(batches) % groups == 0


def test_stream_order_is_the_same_every_epoch():
    batches = batches_of(100, 5, 20)
    first, second = ([batch.words.tolist() for batch in batches.epoch(n)] for n in (0, 1))
    assert first == second


def test_context_is_carried_not_read_again():
    with pytest.raises(ValueError, match="context=2: break_mode=stream keeps the state"):
        Blocks(break_mode="stream", block=5, context=2)
