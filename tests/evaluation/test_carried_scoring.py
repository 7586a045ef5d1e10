"""Break mode `stream`: recurrent decoders carry their state from block to block."""

import numpy as np
import pytest

from zipflm import LanguageModel, preset
from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.data.token_file import TokenArray
from zipflm.evaluation.scoring import score
from zipflm.presets.rivals import with_decoder

IDS = np.random.default_rng(1).integers(4, 900, 50)


def nll(model, break_mode, block, max_tokens):
    tokens = TokenArray.of([IDS])
    blocks = Blocks(break_mode=break_mode, block=block)
    batches = Batches(tokens, blocks, max_tokens=max_tokens, shuffle=False)
    ends = np.ones(4000, dtype=bool)
    return score(model, batches, device="cpu", ends_word=ends).nll


@pytest.mark.parametrize("name", ["gcnn", "lstm", "qrnn"])
def test_scores_a_stream_like_one_long_text(name):
    model = LanguageModel(with_decoder(preset("tiny", "ADP-T"), name))
    whole = nll(model, "none", 50, 50)
    np.testing.assert_allclose(nll(model, "stream", 8, 8), whole, rtol=1e-4)
    assert not np.allclose(nll(model, "none", 8, 8), whole, rtol=1e-4)
    halves = nll(model, "stream", 5, 10)  # two rows, each with its own state
    np.testing.assert_allclose(halves[:25], whole[:25], rtol=1e-4)


def test_transformers_start_every_block_without_context():
    model = LanguageModel(preset("tiny", "ADP-T"))
    assert np.array_equal(nll(model, "stream", 8, 8), nll(model, "none", 8, 8))
