"""Blocks that leave something to score, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.config import Blocks
from zipflm.records import from_dict, to_dict

LONGEST = 2**31 - 1


@given(st.integers(1, LONGEST), st.data())
def test_every_block_with_room_beside_its_context_is_allowed(block, data):
    context = data.draw(st.integers(0, block - 1))
    blocks = Blocks(break_mode="none", block=block, context=context)
    assert from_dict(Blocks, to_dict(blocks)) == blocks


def test_there_is_no_context_unless_asked_for():
    assert Blocks(break_mode="complete", block=512).context == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block": 0}, f"^block=0: give 1 to {LONGEST}$"),
        ({"block": LONGEST + 1}, f"^block={LONGEST + 1}: give 1 to {LONGEST}$"),
        ({"context": 16}, "^context=16: must leave room .* block=16; give 0 to 15$"),
        ({"context": -1}, "^context=-1: must leave room"),
        ({"block": 1, "context": 1}, "^context=1: .* give 0 to 0$"),
        ({"break_mode": "eos"}, "^break_mode='eos': choose from none, complete, sentence$"),
    ],
)
def test_the_field_that_is_wrong_is_named_first(values, message):
    """Others put a prefix before it: --block, eval_block."""
    with pytest.raises(ValueError, match=message):
        Blocks(**{"break_mode": "none", "block": 16} | values)
