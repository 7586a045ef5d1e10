"""Windows score every token once, within a block and a single text."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zipflm.config import Blocks
from zipflm.data.windows import batched, document_windows


def windows_of(lengths, blocks, skip=0):
    ends = np.cumsum(lengths)
    begins = ends - lengths
    return document_windows(begins, begins + skip, ends, blocks)


LENGTHS = st.lists(st.integers(4, 40), min_size=1, max_size=8)


@given(LENGTHS, st.integers(1, 20), st.integers(0, 19), st.integers(0, 3))
def test_scores_every_token_once(lengths, block, context, skip):
    blocks = Blocks(break_mode="none", block=block, context=min(context, block - 1))
    windows = windows_of(lengths, blocks, skip)
    times = np.zeros(sum(lengths), dtype=int)
    document = np.repeat(np.arange(len(lengths)), lengths)
    for first, start, end in zip(windows.first, windows.start, windows.end, strict=True):
        assert first <= start < end
        assert end - first <= max(block, skip + block)
        assert document[first] == document[end - 1]
        times[start:end] += 1
    begins = np.cumsum(lengths) - lengths
    is_prefix = np.arange(len(times)) - begins[document] < skip
    assert (times == ~is_prefix).all()


@given(LENGTHS, st.integers(40, 100))
def test_batches_have_every_window_once(lengths, room):
    windows = windows_of(lengths, Blocks(break_mode="none", block=40, context=20))
    found = []
    for batch in batched(windows, room):
        sizes = batch.end - batch.first
        assert len(sizes) * sizes.max() <= room
        found += batch.first.tolist()
    assert sorted(found) == sorted(windows.first.tolist())


def test_batches_have_little_padding():
    lengths = [*range(5, 36)] * 40
    windows = windows_of(lengths, Blocks(break_mode="none", block=64, context=0))
    padded = sum(len(b.end) * (b.end - b.first).max() for b in batched(windows, 4096))
    assert padded < 1.15 * sum(lengths)
    few = [5, 6, 20, 35]
    windows = windows_of(few, Blocks(break_mode="none", block=64, context=0))
    assert len(list(batched(windows, 4096))) == 1  # small enough for padding to be free
