"""Texts of many requests written together, one id of each at a time.

New ones join before any step and ended ones leave after it, so that a short text never waits for a
long one beside it. Each row draws with a generator of its own: what a request gets does not depend
on who else is there. A text that outgrows the block goes on behind its last `context` ids, as
`language.generation` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zipflm.data.vocabulary import PAD
from zipflm.language.engine import Engine, diverged
from zipflm.language.generation import never_written
from zipflm.language.texts import Ids, TextReader
from zipflm.model.ragged_cache import RaggedCache
from zipflm.model.sampling import draw, most_likely
from zipflm.serving.continuation import Continuation
from zipflm.serving.scoring import Likely

_SEEDS = 2**63
_STRIDE = 0x1E3779B97F4A7C15
"""Between the seeds of one request's texts: odd, so that they all differ."""


@dataclass(frozen=True)
class Choice:
    """What to draw from."""

    temperature: float
    top_k: int
    top_p: float


@dataclass(eq=False)
class Row:
    """One text to be written."""

    prompt: Ids
    """Without the `</s>` that it follows."""
    choice: Choice
    generator: torch.Generator
    continuation: Continuation
    top: int = 0
    """So many of the most likely ids are wanted at every step."""

    def __post_init__(self) -> None:
        self.written: list[int] = []

    def room(self, block: int) -> int:
        """Places it will take up in a cache."""
        return min(block, len(self.prompt) + 1 + self.continuation.max_tokens)


class Places:
    """How many rows fit beside each other: as many as the longest leaves room for."""

    def __init__(self, tokens: int, taken: Iterable[int], room: Callable[[Row], int]) -> None:
        self._tokens, self._room = tokens, room
        self._number = self._longest = 0
        for longest in taken:
            self._number += 1
            self._longest = max(self._longest, longest)

    def take(self, row: Row) -> bool:
        """Whether one more fits, which then has its place; the first one always does."""
        number, longest = self._number + 1, max(self._longest, self._room(row))
        if number > 1 and number * longest > self._tokens:
            return False
        self._number, self._longest = number, longest
        return True


def generator_of(seed: int | None, index: int) -> torch.Generator:
    """For the text number `index` of a request; number 0 draws what `lm.generate` draws with the
    seed."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed((seed + index * _STRIDE) % _SEEDS)
    return generator


class Steps:
    """The texts that one model is writing."""

    def __init__(self, engine: Engine, reader: TextReader) -> None:
        self._engine = engine
        forbidden = never_written(reader.vocabulary, True)[: reader.num_predicted]
        self._forbidden = forbidden.to(engine.device)
        self.rows: list[Row] = []
        self._cache = RaggedCache()
        self._hidden_ND = torch.zeros(0)

    def places(self) -> Places:
        """For rows that are about to join."""
        return Places(self._engine.batch_tokens, map(self._room, self.rows), self._room)

    def _room(self, row: Row) -> int:
        return row.room(self._engine.blocks.block)

    def join(self, rows: Sequence[Row]) -> None:
        """Rows that have room; they are part of the next step."""
        self._read(rows, [self._engine.inputs(row.prompt) for row in rows])

    def leave(self, rows: Sequence[Row]) -> None:
        """Rows that need no further step."""
        if not rows:
            return
        leaving = set(rows)
        gone = {place for place, row in enumerate(self.rows) if row in leaving}
        order = self._cache.drop(gone)
        self.rows = [self.rows[place] for place in order]
        self._hidden_ND = self._hidden_ND[torch.tensor(order, dtype=torch.long).to(self._device)]

    def step(self) -> list[Row]:
        """One id more for every row; those that are complete have left, and are returned."""
        drawn, logprobs = self._draw()
        top = self._top()
        for row, token, logprob, likely in zip(self.rows, drawn, logprobs, top, strict=True):
            row.written.append(token)
            row.continuation.add(token, logprob, likely)
        complete = [row for row in self.rows if row.continuation.finish_reason]
        self.leave(complete)
        self._advance()
        return complete

    @property
    def _device(self) -> torch.device:
        return self._engine.device

    def _draw(self) -> tuple[list[int], list[float]]:
        """Ids and log-probabilities; rows that draw in the same way do so together."""
        alike: dict[Choice, list[int]] = defaultdict(list)
        for place, row in enumerate(self.rows):
            alike[row.choice].append(place)
        ids, logprobs = [0] * len(self.rows), [0.0] * len(self.rows)
        for choice, places in alike.items():
            is_all = len(places) == len(self.rows)
            chosen = torch.tensor(places, device=self._device)
            drawn = draw(
                self._engine.model.output,
                self._hidden_ND if is_all else self._hidden_ND[chosen],
                temperature=choice.temperature,
                top_k=choice.top_k,
                top_p=choice.top_p,
                forbidden=self._forbidden,
                generator=[self.rows[place].generator for place in places],
            )
            if not drawn[1].isfinite().all():
                raise diverged()
            for place, token, logprob in zip(places, *(x.tolist() for x in drawn), strict=True):
                ids[place], logprobs[place] = token, logprob
        return ids, logprobs

    def _top(self) -> list[Likely]:
        top: list[Likely] = [[] for _ in self.rows]
        places = [place for place, row in enumerate(self.rows) if row.top]
        if places:
            k = max(self.rows[place].top for place in places)
            chosen = torch.tensor(places, device=self._device)
            values, ids = most_likely(self._engine.model.output, self._hidden_ND[chosen], k)
            for place, *found in zip(places, ids.tolist(), values.tolist(), strict=True):
                top[place] = list(zip(*found, strict=True))[: self.rows[place].top]
        return top

    def _advance(self) -> None:
        """The model reads the ids that were written last."""
        if not self.rows:
            return
        full = [
            row
            for row, length in zip(self.rows, self._cache.lengths, strict=True)
            if length >= self._engine.blocks.block
        ]
        if full:
            self.leave(full)
        if self.rows:
            last = torch.tensor([[row.written[-1]] for row in self.rows], device=self._device)
            self._hidden_ND = self._engine.model(last, self._cache)[:, -1]
        if full:
            context = max(self._engine.blocks.context, 1)
            self._read(full, [np.append(row.prompt, row.written)[-context:] for row in full])

    def _read(self, rows: Sequence[Row], inputs: Sequence[Ids]) -> None:
        """Rows join with what the model is to read first; of equal inputs it reads one."""
        different = {ids.tobytes(): ids for ids in inputs}
        place_of = {key: place for place, key in enumerate(different)}
        lengths = [len(ids) for ids in different.values()]
        words = torch.full((len(lengths), max(lengths)), PAD)
        for place, ids in enumerate(different.values()):
            words[place, : len(ids)] = torch.from_numpy(ids)
        cache = self._engine.model.new_cache(*words.shape)
        hidden_BTD: Tensor = self._engine.model(words.to(self._device), cache)
        places = torch.tensor([place_of[ids.tobytes()] for ids in inputs], device=self._device)
        ends = torch.tensor([len(ids) - 1 for ids in inputs], device=self._device)
        hidden_ND = hidden_BTD[places, ends]
        if len(different) < len(rows):
            cache = cache.select(places)
        self._cache.join(cache, [len(ids) for ids in inputs], max(map(self._room, rows)))
        self._hidden_ND = torch.cat([self._hidden_ND, hidden_ND]) if self.rows else hidden_ND
        self.rows = [*self.rows, *rows]
