"""The endless stream of training batches, with a position that can be saved.

The batches of all epochs form one sequence, from which the processes take batches in turn. An
update therefore has the same batches for any number of processes, even across the end of an epoch.
When the block length changes, training continues from about the same point of the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count

import torch
import torch.nn.functional as F

from zipflm.config import Config
from zipflm.data.batches import Batch, Batches, prefetch
from zipflm.data.token_file import TokenArray
from zipflm.data.vocabulary import PAD
from zipflm.distributed.processes import Process
from zipflm.model.inputs import UniqueTokens
from zipflm.runs.records import Position

_UNIQUE_SIZES = 16
"""Padded sizes of `unique` are multiples of 1/16 of the batch."""
_UNIQUE_MARGIN = 1.125
"""Extra space, so that a later batch rarely needs a larger size."""


def block_at(config: Config, update: int) -> int:
    """Return the block length after `update` updates."""
    for end, block in config.training.stages:
        if update < round(end * config.training.max_updates):
            return block
    return config.batches.block


def blocks_of(config: Config) -> list[int]:
    """Return the block lengths of a run, in order."""
    stages = config.training.stages
    is_staged_throughout = bool(stages) and stages[-1][0] == 1
    return [block for _, block in stages] + ([] if is_staged_throughout else [config.batches.block])


def accumulation(config: Config, process: Process, block: int | None = None) -> int:
    """Return the number of batches that each process accumulates for an update.

    `block` is the current block length, by default `batches.block`. Raises ValueError unless the
    number is an integer for every block length of the run.
    """
    requested = config.training.tokens_per_update
    per_step = {b: tokens_per_batch(config, b) * process.world_size for b in blocks_of(config)}
    if requested % (common := math.lcm(*per_step.values())):
        short = next(b for b, tokens in per_step.items() if requested % tokens)
        nearest = max(round(requested / common), 1) * common
        raise ValueError(
            f"training.tokens_per_update={requested}: not a multiple of {per_step[short]}, the "
            f"tokens that {process.world_size} device(s) process at once in blocks of {short}; use "
            f"training.tokens_per_update={nearest}, or change batches.tokens"
        )
    return _batches_per_update(config, block or config.batches.block) // process.world_size


def tokens_per_batch(config: Config, block: int) -> int:
    """Return the maximum number of tokens in a batch: `batches.tokens`, rounded down to full blocks
    if all blocks have the same length."""
    tokens = config.batches.tokens
    return tokens // block * block if config.batches.blocks.has_one_length else tokens


def _batches_per_update(config: Config, block: int) -> int:
    """Return the number of batches per update, over all processes."""
    return config.training.tokens_per_update // tokens_per_batch(config, block)


def training_batches(config: Config, tokens: TokenArray, block: int) -> Batches:
    """Return the training batches in blocks of this length."""
    return Batches(
        tokens,
        replace(config.batches.blocks, block=block),
        max_tokens=config.batches.tokens,
        seed=config.training.seed,
        shuffle=True,
        streams=config.training.tokens_per_update // block,
    )


class Stream:
    """An endless sequence of training batches for this process, starting at a position."""

    def __init__(
        self, config: Config, tokens: TokenArray, process: Process, position: Position, block: int
    ) -> None:
        self._config, self._tokens, self._process = config, tokens, process
        self._open(position, block)

    def _open(self, position: Position, block: int) -> None:
        config, process = self._config, self._process
        batches = training_batches(config, self._tokens, block)
        self.block: int = block
        self._total = batches.num_batches
        self._consumed = (
            position.epoch * self._total + position.consumed * self._total // position.total
        )
        if config.batches.break_mode == "stream":
            # An update must start with the batch of the first rows. Round down, because the number
            # of batches per update may have changed.
            self._consumed -= self._consumed % _batches_per_update(config, block)
        own = batches.numbered(count(self._consumed + process.rank, process.world_size))
        if config.training.compile and config.batches.blocks.has_one_length:
            shape = config.batches.tokens // block, block
            own = (_pad(batch, *shape) for batch in own)
        if config.input.spells_words:
            own = (batch.with_unique_tokens() for batch in own)
            own = _pad_unique(own) if config.training.compile else own
        self._batches = prefetch(own, process.device)

    @property
    def position(self) -> Position:
        """The position after the batches that all processes have taken so far."""
        return Position(*divmod(self._consumed, self._total), self._total)

    @property
    def is_at_start(self) -> bool:
        """True if the next batch is the first of an epoch."""
        return self._consumed % self._total == 0

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self._consumed / self._total

    def use_block(self, block: int) -> None:
        """Continue with blocks of this length."""
        self.close()
        self._open(self.position, block)

    def next(self) -> Batch:
        """Return the next batch of this process. All processes must call this the same number of
        times."""
        self._consumed += self._process.world_size
        return next(self._batches)

    def next_update(self) -> list[Batch]:
        num_batches = accumulation(self._config, self._process, self.block)
        return [self.next() for _ in range(num_batches)]

    def close(self) -> None:
        """Stop the thread that prefetches batches."""
        self._batches.close()


def _pad(batch: Batch, num_rows: int, block: int) -> Batch:
    """Pad a batch with fewer or shorter rows than the others. Otherwise, the model would be
    compiled again for its shape."""
    rows, columns = num_rows - batch.words.shape[0], block - batch.words.shape[1]
    if rows == columns == 0:
        return batch
    assert rows >= 0 and columns >= 0
    pad = (0, columns, 0, rows)
    return Batch(
        F.pad(batch.words, pad, value=PAD),
        F.pad(batch.targets, pad, value=PAD),
        F.pad(batch.scored, pad, value=False),
    )


def _pad_unique(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Pad `unique` to one of a few sizes that never shrink. The model is compiled for each size."""
    size = 0
    for batch in batches:
        assert batch.unique is not None
        ids_U, indices_BT = batch.unique
        if len(ids_U) > size:
            step = -(-batch.words.numel() // _UNIQUE_SIZES)
            size = math.ceil(_UNIQUE_MARGIN * len(ids_U) / step) * step
        padded = torch.cat([ids_U, ids_U[-1:].expand(size - len(ids_U))])
        yield replace(batch, unique=UniqueTokens(padded, indices_BT))
