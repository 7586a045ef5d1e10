import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.config import Blocks
from zipflm.evaluation.protocol import ScoringProtocol, TokenScores


def scores(nll, ends):
    protocol = ScoringProtocol(
        unit="bpe",
        blocks=Blocks(break_mode="none", block=8),
        tokens=len(nll),
        words=sum(ends) + (not ends[-1]) if ends else 0,
        unk=0,
        eos=0,
        positions=len(nll),
        dtype="float32",
    )
    return TokenScores(
        np.zeros(len(nll), dtype=np.int64),
        np.array(nll, dtype=np.float32),
        np.array(ends, dtype=np.bool_),
        protocol,
    )


def test_pieces_add_up_to_words():
    merged = scores([1, 2, 4, 8, 16], [False, False, True, True, True])
    assert merged.words().tolist() == [7, 8, 16]
    assert merged.perplexity == pytest.approx(math.exp(31 / 3))


def test_an_unfinished_word_at_the_end_counts():
    assert scores([1, 2, 4], [True, False, False]).words().tolist() == [1, 6]
    assert scores([1, 2, 4], [True, False, False]).nats_per_word == pytest.approx(7 / 2)


@given(st.lists(st.tuples(st.floats(0, 30, width=32), st.booleans()), min_size=1))
def test_merging_keeps_the_total(pairs):
    merged = scores(*zip(*pairs, strict=True))
    assert len(merged.words()) == merged.protocol.words
    assert merged.words().sum() == pytest.approx(merged.nll_sum)


def test_huge_perplexity_is_infinite():
    assert scores([1e30], [True]).perplexity == math.inf


def test_bits_per_byte():
    assert scores([math.log(2) * 8], [True]).bits_per_byte(4) == pytest.approx(2)


def test_protocol_as_a_flat_dictionary():
    assert scores([1], [True]).protocol.by_name() == {
        **{"unit": "bpe", "break_mode": "none", "block": 8, "context": 0, "tokens": 1, "words": 1},
        **{"unk": 0, "eos": 0, "positions": 1, "dtype": "float32"},
    }
