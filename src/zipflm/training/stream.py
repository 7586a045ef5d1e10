"""The endless stream of training batches, and a place in it that can be saved.

The batches of all epochs stand in one row; of each update's share of it process r takes every
`world_size`-th from the r-th on. So an update consists of the same batches for any number of
processes, also across the end of an epoch, and a place in the row means the same to all of them.
When the block length changes, the place keeps its share of the epoch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import torch.nn.functional as F

from zipflm.config import Config
from zipflm.data.batches import Batch, Batches
from zipflm.data.loader import Loader
from zipflm.data.tokens import Tokens
from zipflm.runs.records import Place
from zipflm.training.distributed import Process


def block_at(config: Config, update: int) -> int:
    """The block length of the update that follows `update` updates."""
    for end, block in config.training.stages:
        if update < round(end * config.training.max_updates):
            return block
    return config.batches.block


def blocks_of(config: Config) -> list[int]:
    """The block lengths of a run, in turn."""
    stages = config.training.stages
    is_staged_throughout = bool(stages) and stages[-1][0] == 1
    return [block for _, block in stages] + ([] if is_staged_throughout else [config.batches.block])


class Stream:
    """This process's training batches from a place on, epoch after epoch."""

    def __init__(
        self, config: Config, tokens: Tokens, process: Process, place: Place, block: int
    ) -> None:
        self._config, self._tokens, self._process = config, tokens, process
        self._open(place, block)

    def _open(self, place: Place, block: int) -> None:
        row = _Row(self._config, self._tokens, self._process, block)
        self.block, self._total = block, row.num_batches
        self._consumed = place.epoch * self._total + place.consumed * self._total // place.total
        self._batches = Loader(row, self._process.device).epoch(0, self._consumed)

    @property
    def place(self) -> Place:
        return Place(*divmod(self._consumed, self._total), self._total)

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self._consumed / self._total

    def use_block(self, block: int) -> None:
        """Go on with blocks of another length."""
        if block != self.block:
            self.close()
            self._open(self.place, block)

    def next(self) -> Batch:
        self._consumed += self._process.world_size
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


class _Row(Batches):
    """The batches of all epochs one behind the other, of which this process takes its turns."""

    def __init__(self, config: Config, tokens: Tokens, process: Process, block: int) -> None:
        super().__init__(
            tokens,
            replace(config.batches.blocks, block=block),
            max_tokens=config.batches.tokens,
            seed=config.training.seed,
            shuffle=True,
        )
        self._turn, self._step = process.rank, process.world_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Endless; `start` counts the batches of all processes since the beginning of `epoch`."""
        number = epoch * self.num_batches + start + self._turn
        while True:
            yield self.batch(*divmod(number, self.num_batches))
            number += self._step
