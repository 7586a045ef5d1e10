"""Windows over texts: each is seen whole where it fits into a block, and slid over where not.

A text that is longer than the block is cut as `evaluate` cuts: parts of `block - context` tokens,
each behind the context before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks
from zipflm.data.batches import Windows, group


def document_windows(lengths: Sequence[int], blocks: Blocks, skip: int = 0) -> Windows:
    """Windows over texts that stand one behind the other in a stream, `lengths` tokens each.

    The first `skip` tokens of every text are context only.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    begins = np.cumsum(sizes) - sizes
    fits = sizes <= blocks.block
    first, start, end = ([part[fits]] for part in (begins, begins + skip, begins + sizes))
    for begin, size in zip(begins[~fits], sizes[~fits], strict=True):
        starts = np.arange(skip, size, blocks.block - blocks.context)
        first.append(begin + np.maximum(starts - blocks.context, 0))
        start.append(begin + starts)
        end.append(begin + np.append(starts[1:], size))
    return Windows(*map(np.concatenate, (first, start, end)))


def batched(windows: Windows, max_tokens: int) -> Iterator[Windows]:
    """Windows of similar length together, as many as fit into `max_tokens` with their padding."""
    lengths = windows.end - windows.first
    order: NDArray[np.int64] = np.argsort(lengths, kind="stable")
    bounds = group(lengths[order], max_tokens)
    for low, high in zip(bounds, bounds[1:], strict=False):
        rows = order[low:high]
        yield Windows(windows.first[rows], windows.start[rows], windows.end[rows])
