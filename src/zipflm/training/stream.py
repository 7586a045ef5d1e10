"""The endless stream of training batches, and a place in it that can be saved.

A place is an epoch and how many of its batches all processes together have consumed. Batch i of an
epoch goes to process i modulo their number, so the place means the same for any number of them:
resuming with as many is exact, with another number it repeats at most one batch each. When the
block length changes, the place keeps its share of the epoch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch.nn.functional as F

from zipflm.config import Config
from zipflm.data.batches import Batch, Batches
from zipflm.data.loader import Loader
from zipflm.data.tokens import Tokens
from zipflm.training.distributed import Process


@dataclass(frozen=True)
class Place:
    """Before batch number `consumed` of `total` in an epoch, counted over all processes."""

    epoch: int = 0
    consumed: int = 0
    total: int = 1


def block_at(config: Config, update: int) -> int:
    """The block length of the update that follows `update` updates."""
    for end, block in config.training.stages:
        if update < round(end * config.training.max_updates):
            return block
    return config.batches.block


class Stream:
    """This process's training batches from a place on, epoch after epoch."""

    def __init__(
        self, config: Config, tokens: Tokens, process: Process, place: Place, block: int
    ) -> None:
        self._config, self._tokens, self._process = config, tokens, process
        self._open(place, block)

    def _open(self, place: Place, block: int) -> None:
        config, process = self._config, self._process
        batches = Batches(
            self._tokens,
            break_mode=config.batches.break_mode,
            block=block,
            max_tokens=config.batches.tokens,
            seed=config.training.seed,
            shuffle=True,
            rank=process.rank,
            world_size=process.world_size,
        )
        self.block, self._total = block, batches.num_batches
        self._loader = Loader(batches, process.device)
        self._epoch = place.epoch
        self._start = place.consumed * self._total // place.total // process.world_size
        self._batches: Iterator[Batch] = self._loader.epoch(self._epoch, self._start)

    @property
    def place(self) -> Place:
        consumed = min(self._start * self._process.world_size, self._total)
        return Place(self._epoch, consumed, self._total)

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self._epoch + self._start / len(self._loader)

    def use_block(self, block: int) -> None:
        """Go on with blocks of another length."""
        if block != self.block:
            self.close()
            self._open(self.place, block)

    def next(self) -> Batch:
        if self._start >= len(self._loader):
            self._epoch, self._start = self._epoch + 1, 0
            self._batches = self._loader.epoch(self._epoch)
        self._start += 1
        batch = next(self._batches)
        return self._full(batch) if self._config.training.compile else batch

    def _full(self, batch: Batch) -> Batch:
        """Rows that score nothing make up for those an epoch's last batch lacks: a compiled model
        is compiled again for every new shape."""
        if self._config.batches.break_mode != "none":
            return batch
        rows = self._config.batches.tokens // self.block - batch.words.shape[0]
        columns = self.block - batch.words.shape[1]
        if rows == columns == 0:
            return batch
        pad = (0, columns, 0, rows)
        return Batch(
            F.pad(batch.words, pad, value=1),
            F.pad(batch.targets, pad, value=1),
            F.pad(batch.scored, pad, value=False),
        )

    def close(self) -> None:
        """Stop the loader's thread."""
        if isinstance(self._batches, Generator):
            self._batches.close()
