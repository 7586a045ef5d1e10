"""Windows over texts: each is seen whole where it fits into a block, and slid over where not.

A text that is longer than the block is cut as `evaluate` cuts: parts of `block - context` tokens,
each behind the context before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks
from zipflm.data.parts import Windows

_SMALL = 8
"""Below this part of what fits, a batch leaves the device idle."""


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
    """Windows of similar length together, at most `max_tokens` with their padding.

    A batch that is large enough to keep the device busy is not made larger at the price of more
    than a tenth of padding.
    """
    lengths = windows.end - windows.first
    order: NDArray[np.int64] = np.argsort(lengths, kind="stable")
    lengths, row = lengths[order], 0
    while row < len(lengths):
        some = lengths[row : row + max(1, max_tokens // int(lengths[row]))]
        used, padded = np.cumsum(some), some * np.arange(1, len(some) + 1)
        is_dense = (10 * padded <= 11 * used) | (used <= max_tokens // _SMALL)
        number = max(1, int(np.argmin(np.append((padded <= max_tokens) & is_dense, False))))
        rows = order[row : row + number]
        yield Windows(windows.first[rows], windows.start[rows], windows.end[rows])
        row += number
