"""Lines that follow each other, scored part by part: a stream of any length in bounded memory.

The parts are those of `evaluate`, so that a text scored while it is read gets the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks
from zipflm.data.parts import Windows, cut
from zipflm.data.tokens import TokenArray
from zipflm.language.engine import Engine
from zipflm.language.texts import Ids

# Batches that are scored together: enough that the last one, seldom full, does not matter.
_BATCHES = 8


class RunningLines:
    """Takes lines and gives back the nll of each, in order, once the part it ends in is scored."""

    def __init__(self, engine: Engine, blocks: Blocks, prefix: Ids) -> None:
        self._engine, self._blocks = engine, blocks
        self._lengths: list[int] = []
        """Of lines that have not been given back."""
        self._nll = np.zeros(0, dtype=np.float32)
        """Of their tokens, as far as they are scored."""
        self._waiting: deque[Ids] = deque()
        """Tokens that are not, line by line; they begin where a part begins."""
        self._num_waiting = 0
        self._before = prefix
        """The last tokens before those: the context of the next part, and one more."""

    def add(self, ids: Ids) -> Iterator[NDArray[np.float32]]:
        """One line more, with its end; yields what is complete by then."""
        self._lengths.append(len(ids))
        self._waiting.append(ids)
        self._num_waiting += len(ids)
        if self._num_waiting >= _BATCHES * self._engine.batch_tokens:
            yield from self._score(is_all=False)

    def finish(self) -> Iterator[NDArray[np.float32]]:
        """There are no more lines; yields what is left."""
        if self._waiting:
            yield from self._score(is_all=True)

    def _score(self, is_all: bool) -> Iterator[NDArray[np.float32]]:
        blocks = self._blocks
        offsets = np.cumsum([0, *map(len, self._waiting)])
        ids = np.concatenate(list(self._waiting))
        bounds = cut(TokenArray(ids, offsets), blocks.break_mode, blocks.block - blocks.context)
        if not is_all:
            bounds = bounds[:-1]  # more may still join the last part
        num_before, end = len(self._before), int(bounds[-1])
        stream = np.concatenate([self._before, ids[:end]])
        windows = _with_context(num_before + bounds, blocks)
        scored = self._engine.nll_of(stream, windows)[num_before:]
        self._nll = np.concatenate([self._nll, scored])
        self._before = stream[-(blocks.context + 1) :]
        self._forget(end)
        yield from self._complete()

    def _forget(self, number: int) -> None:
        """So many tokens wait no longer."""
        self._num_waiting -= number
        while self._waiting and number >= len(self._waiting[0]):
            number -= len(self._waiting.popleft())
        if number:
            self._waiting[0] = self._waiting[0][number:]

    def _complete(self) -> Iterator[NDArray[np.float32]]:
        ends = np.cumsum(self._lengths)
        number = int(np.searchsorted(ends, len(self._nll), side="right"))
        parts = np.split(self._nll, ends[:number])
        self._lengths, self._nll = self._lengths[number:], parts.pop()
        yield from parts


def _with_context(bounds: NDArray[np.int64], blocks: Blocks) -> Windows:
    """As much context as fits into the block, and as there is."""
    start, end = bounds[:-1], bounds[1:]
    room = np.clip(blocks.block - (end - start), 0, blocks.context)
    return Windows(np.maximum(start - room, 0), start, end)
