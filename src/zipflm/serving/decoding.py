"""Texts of many requests generated together, one token each per step.

New texts join before any step and finished ones leave after it. Each has a random generator of its
own, so a response does not depend on other requests. A word in pieces is shown when it is complete;
text that may be the start of a stop sequence is held back until that is clear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from zipflm.data.bpe import join
from zipflm.data.vocabulary import CONTINUES, END, PAD
from zipflm.evaluation.scoring import Likely
from zipflm.language.engine import Engine, diverged
from zipflm.language.generation import never_written
from zipflm.language.next_words import MOST_PIECES
from zipflm.language.text import Ids, TextReader
from zipflm.model.kv_cache import RaggedCache
from zipflm.model.sampling import draw, most_likely


class Spelling:
    """Ids as readable text, one after the other."""

    def __init__(self, reader: TextReader, has_space: bool = False) -> None:
        """With `has_space` there is a space already before the first word."""
        self._reader, self._has_space = reader, has_space
        self._joiner = reader.encoder.splitter.joiner()
        self._pieces: list[str] = []
        self._length = 0
        self.offsets: list[int] = []
        """Where each token of a complete word begins in the text, after any space."""
        self.num_lines: int = 0
        """That have ended."""

    @property
    def is_within_word(self) -> bool:
        return bool(self._pieces)

    def follow(self, words: Sequence[str]) -> None:
        """The line has begun with these words, which are written already."""
        for word in words:
            self._joiner.add(word)

    def add(self, token: int) -> str:
        """What it adds to the text: nothing before the word is complete."""
        self._pieces.append(self._reader.vocabulary.words[token])
        # A model may go on with the pieces of one word for ever.
        if not self._reader.ends_word[token] and len(self._pieces) < MOST_PIECES:
            return ""
        is_end = token == END and len(self._pieces) == 1
        if is_end:
            self._joiner = self._reader.encoder.splitter.joiner()
            self.num_lines += 1
            text = self._completed("\n")
        else:
            text = self.finish()
        self._has_space = False
        return text

    def finish(self) -> str:
        """The word that was begun, as far as it goes."""
        if not self._pieces:
            return ""
        word = join(self._pieces).removesuffix(CONTINUES)
        text = self._joiner.add(word) if word else ""
        return self._completed(text.lstrip(" ") if self._has_space else text)

    def _completed(self, text: str) -> str:
        """Places of the pieces in the word that they have added."""
        end = self._length + len(text)
        start = end - len(text.lstrip(" "))
        for piece in self._pieces:
            self.offsets.append(min(start, end))
            start += len(piece.removesuffix(CONTINUES))
        self._pieces, self._length = [], end
        return text


@dataclass(frozen=True)
class WrittenToken:
    """One id that was drawn."""

    token: int
    logprob: float
    """The model's own, in nats."""
    top: Likely
    """The most likely ids in its place, as many as were asked for."""
    offset: int
    """Where in the written text its first character stands."""


@dataclass
class Delta:
    """What there is to show since the last time."""

    text: str = ""
    tokens: list[WrittenToken] = field(default_factory=list)
    finish_reason: str | None = None


class Continuation:
    """The text that one row writes."""

    def __init__(
        self, spelling: Spelling, *, max_tokens: int, lines: int = 1, stop: Sequence[str] = ()
    ) -> None:
        """It ends after `max_tokens` ids, `lines` line ends (0: never) or before a stop sequence;
        the line end that ends it is not part of the text."""
        self.text: str = ""
        self.tokens: list[WrittenToken] = []
        """Of complete words."""
        self.finish_reason: str | None = None if max_tokens else "length"
        self.max_tokens = max_tokens
        self._spelling, self._stop = spelling, stop
        self._last_line = spelling.num_lines + lines if lines else None
        self._longest_stop = max(map(len, stop), default=0)
        self._drawn: list[tuple[int, float, Likely]] = []
        self._num_shown = self._num_told = 0

    def add(self, token: int, logprob: float, top: Likely) -> None:
        """One id more."""
        self._drawn.append((token, logprob, top))
        begin = len(self.text)
        added = self._spelling.add(token)
        if self._spelling.num_lines == self._last_line:
            added, self.finish_reason = "", "stop"
        is_full = len(self._drawn) >= self.max_tokens
        if is_full and self.finish_reason is None:
            self.finish_reason = "length"
            added += self._spelling.finish()
        for place in range(len(self.tokens), len(self._spelling.offsets)):
            self.tokens.append(WrittenToken(*self._drawn[place], self._spelling.offsets[place]))
        self.text += added
        self._cut_at_stop(begin)

    def _cut_at_stop(self, begin: int) -> None:
        """The text ends before the first stop sequence in it."""
        first = max(0, begin - self._longest_stop + 1)
        found = [place for each in self._stop if (place := self.text.find(each, first)) >= 0]
        if found:
            self.text, self.finish_reason = self.text[: min(found)], "stop"

    def take(self) -> Delta:
        """What can be shown by now and has not been."""
        shown = len(self.text) if self.finish_reason else self._certain()
        shown = max(shown, self._num_shown)
        delta = Delta(
            self.text[self._num_shown : shown], self.tokens[self._num_told :], self.finish_reason
        )
        self._num_shown, self._num_told = shown, len(self.tokens)
        return delta

    def _certain(self) -> int:
        """Up to where no stop sequence can have begun."""
        return min(map(self._begin_of, self._stop), default=len(self.text))

    def _begin_of(self, stop: str) -> int:
        """Where the text's end begins that may go on to a stop sequence. Only places with its first
        character are tried: it may be long, and this is asked for every word of every text."""
        place = self.text.find(stop[0], max(0, len(self.text) - len(stop) + 1))
        while place >= 0 and not stop.startswith(self.text[place:]):
            place = self.text.find(stop[0], place + 1)
        return len(self.text) if place < 0 else place


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
