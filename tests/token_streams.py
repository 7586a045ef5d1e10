"""Streams of tokens whose batches can be told apart."""

import numpy as np
from hypothesis import strategies as st

from zipflm.data.token_file import TokenArray

SENTENCES = st.lists(st.integers(1, 12), min_size=1, max_size=20)
"""Their lengths."""


def stream(lengths):
    """Every token has an id of its own, from 10 on, so that each can be told from all others."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenArray(np.arange(10, 10 + offsets[-1], dtype=np.int64), offsets)
