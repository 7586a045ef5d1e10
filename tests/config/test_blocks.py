"""Blocks that leave something to score, and nothing else."""

import pytest

from zipflm.config import Blocks


@pytest.mark.parametrize(
    "values", [{"block": 0}, {"context": 16}, {"context": -1}, {"break_mode": "eos"}]
)
def test_the_field_that_is_wrong_is_named_first(values):
    """Others put a prefix before it: --block, eval_block."""
    assert Blocks(break_mode="complete", block=16).context == 0
    ((field, value),) = values.items()
    with pytest.raises(ValueError, match=f"^{field}={value!r}: "):
        Blocks(**{"break_mode": "none", "block": 16} | values)
