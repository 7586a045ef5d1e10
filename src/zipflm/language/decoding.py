"""Texts written together, one token each per step: for the library, the command and the service.

New texts join before any step and finished ones leave after it. Each draws with a random generator
of its own, so it does not depend on those beside it. Every token passes the decoder once; what came
before it is in a cache. When a Transformer's is as long as the block, the model goes on behind the
last `context` tokens, as scoring does when it slides over a text; other decoders never forget.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zipflm.data.bpe import join
from zipflm.data.vocabulary import CONTINUES, END, FILLER, SPECIALS, UNKNOWN, Vocabulary
from zipflm.evaluation.documents import Likely
from zipflm.language.engine import Engine, diverged
from zipflm.language.next_words import MOST_PIECES
from zipflm.language.text import EncodedText, Ids, TextReader
from zipflm.memory.mixing import Mixture
from zipflm.model.kv_cache import RaggedCache
from zipflm.model.recorded_step import RecordedStep
from zipflm.model.sampling import NUM_TRIES, Mix, draw, most_likely

SEEDS = 2**63
_STRIDE = 0x1E3779B97F4A7C15
"""Between the seeds of texts that are asked for together: odd, so that they all differ."""
_STEPS = 64
"""Steps for which a row takes random numbers from its generator at once."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What to draw from, and when to stop. Messages begin with the name of the option."""

    max_words: int | None = 50
    """Line ends count as words, so that a model that writes only those stops, too."""
    max_tokens: int | None = None
    """Words, or pieces of words; a text may end within a word."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    lines: int = 1
    """Line ends after which a text is complete; 0: there is no limit."""
    stop: Sequence[str] = ()
    """A text ends before the first of these."""
    forbid_unknown: bool = True

    def __post_init__(self) -> None:
        if self.max_words is not None and self.max_words < 1:
            raise ValueError(f"max_words={self.max_words}: must be at least 1")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ValueError(f"max_tokens={self.max_tokens}: must be 0 or more")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature={self.temperature}: must be 0 (the most likely word) or more"
            )
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: must be 0 (all words) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must lie above 0, up to 1 (all words)")
        if self.lines < 0:
            raise ValueError(f"lines={self.lines}: must be 0 (no limit) or more")
        if self.seed is not None and not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed={self.seed}: must be a whole number from 0 to 2**63 - 1")
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop={self.stop!r}: must be a list of texts that are not empty")


class Spelling:
    """Ids as readable text, one after the other."""

    def __init__(
        self, reader: TextReader, line: Sequence[str] = (), has_space: bool = False
    ) -> None:
        """The line has begun with these words; with `has_space` a space follows them already."""
        self._reader, self._has_space = reader, has_space
        self._joiner = reader.encoder.splitter.joiner()
        for word in line:
            self._joiner.add(word)
        self._pieces: list[str] = []
        self._length = 0
        self.offsets: list[int] = []
        """Where each token of a complete word begins in the text, after any space."""
        self.num_lines: int = 0
        """That have ended."""

    @property
    def is_within_word(self) -> bool:
        return bool(self._pieces)

    def add(self, token: int) -> str:
        """What it adds to the text: nothing before the word is complete."""
        self._pieces.append(self._reader.vocabulary.words[token])
        # A model may go on with the pieces of one word for ever.
        if not self._reader.ends_word[token] and len(self._pieces) < MOST_PIECES:
            return ""
        if token == END and len(self._pieces) == 1:
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
        word = _joined(self._pieces)
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


def _joined(pieces: Sequence[str]) -> str:
    return join(pieces).removesuffix(CONTINUES)


def last_line(text: EncodedText) -> Sequence[str]:
    """The words after the last line end."""
    line_ends = text.line_ends
    return text.words[line_ends[-1] + 1 if len(line_ends) else 0 :]


class WrittenWord(NamedTuple):
    """A word that was written, or the end of a line."""

    word: str
    """As the vocabulary spells it; `</s>` for the end of a line."""
    logprob: float
    """The model's own, in nats, whatever was asked to draw from."""
    text: str
    """What it adds to the text: with the space or line end before it, where there is one."""


class WrittenToken(NamedTuple):
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
    words: list[WrittenWord] = field(default_factory=list)
    tokens: list[WrittenToken] = field(default_factory=list)
    finish_reason: str | None = None


class GrowingText:
    """One text while it is written.

    A word in pieces is shown when it is complete; text that may be the start of a stop sequence is
    held back until that is clear.
    """

    def __init__(
        self,
        reader: TextReader,
        prompt: Ids,
        spelling: Spelling,
        options: SamplingOptions,
        *,
        number: int = 0,
        top: int = 0,
    ) -> None:
        """The prompt is without the `</s>` that it follows. Of the texts that are asked for
        together this is that `number`; `top` of the most likely ids are wanted at every step."""
        self.prompt, self.options, self.top = prompt, options, top
        self.ids: list[int] = []
        """That were written."""
        self.text: str = ""
        self.finish_reason: str | None = "length" if options.max_tokens == 0 else None
        """`length`, `lines` or `stop`; None while there is more to come."""
        self.has_slid: bool = False
        """Whether it outgrew the block, so that the model no longer sees its beginning."""
        self._reader, self._spelling = reader, spelling
        self._begun: list[tuple[int, float, Likely]] = []
        """Of a word that is not complete."""
        # What was not shown yet.
        self._words: deque[WrittenWord] = deque()
        self._tokens: list[WrittenToken] = []
        self._num_words = self._num_shown = self._words_end = 0
        self._longest_stop = max(map(len, options.stop), default=0)
        self._generator = torch.Generator()
        if options.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((options.seed + number * _STRIDE) % SEEDS)
        self._numbers: list[list[float]] = []

    def room(self, engine: Engine) -> int:
        """Places it will take up in a cache."""
        options, tokens = self.options, engine.blocks.block
        if options.max_tokens is not None:
            tokens = options.max_tokens
        elif options.max_words is not None:
            tokens = options.max_words * (MOST_PIECES if engine.unit == "bpe" else 1)
        return min(engine.blocks.block, len(self.prompt) + 1 + tokens)

    def random(self) -> list[float]:
        """Its numbers in [0, 1) for the next step."""
        if not self._numbers:
            shape = (_STEPS, NUM_TRIES)
            drawn = torch.rand(shape, generator=self._generator, dtype=torch.float64)
            self._numbers = drawn.tolist()[::-1]
        return self._numbers.pop()

    def add(self, token: int, logprob: float, top: Likely) -> None:
        """One id more."""
        options, spelling, begin = self.options, self._spelling, len(self.text)
        self.ids.append(token)
        self._begun.append((token, logprob, top))
        added = spelling.add(token)
        is_full = len(self.ids) == options.max_tokens
        if is_full:
            added += spelling.finish()
        if spelling.is_within_word:
            return
        self.text += added
        self._complete_word(added)
        if spelling.num_lines == options.lines > 0:
            self.finish_reason = "lines"
        elif is_full or self._num_words == options.max_words:
            self.finish_reason = "length"
        if options.stop:
            self._cut_at_stop(begin)

    def _complete_word(self, text: str) -> None:
        offsets = self._spelling.offsets[-len(self._begun) :]
        for drawn, offset in zip(self._begun, offsets, strict=True):
            self._tokens.append(WrittenToken(*drawn, offset))
        names = [self._reader.vocabulary.words[token] for token, _, _ in self._begun]
        logprob = sum(logprob for _, logprob, _ in self._begun)
        self._words.append(WrittenWord(_joined(names), logprob, text))
        self._num_words += 1
        self._begun = []

    def _cut_at_stop(self, begin: int) -> None:
        """The text ends before the first stop sequence in it."""
        first = max(0, begin - self._longest_stop + 1)
        stops = self.options.stop
        found = [place for each in stops if (place := self.text.find(each, first)) >= 0]
        if not found:
            return
        end, self.finish_reason = len(self.text), "stop"
        self.text = self.text[: min(found)]
        while end > len(self.text):
            last = self._words.pop()
            end -= len(last.text)
            if end < len(self.text):
                self._words.append(last._replace(text=self.text[end:]))

    def take(self) -> Delta:
        """What can be shown by now and has not been."""
        shown = len(self.text) if self.finish_reason else self._certain()
        shown = max(shown, self._num_shown)
        delta = Delta(self.text[self._num_shown : shown], [], self._tokens, self.finish_reason)
        self._num_shown, self._tokens = shown, []
        while self._words and self._words_end + len(self._words[0].text) <= shown:
            delta.words.append(self._words.popleft())
            self._words_end += len(delta.words[-1].text)
        return delta

    def _certain(self) -> int:
        """Up to where no stop sequence can have begun."""
        return min(map(self._begin_of, self.options.stop), default=len(self.text))

    def _begin_of(self, stop: str) -> int:
        """Where the text's end begins that may go on to a stop sequence. Only places with its first
        character are tried: it may be long, and this is asked for every word of every text."""
        place = self.text.find(stop[0], max(0, len(self.text) - len(stop) + 1))
        while place >= 0 and not stop.startswith(self.text[place:]):
            place = self.text.find(stop[0], place + 1)
        return len(self.text) if place < 0 else place


class TextDecoder:
    """The texts that one model is writing."""

    def __init__(self, engine: Engine, reader: TextReader, *, is_recorded: bool = False) -> None:
        """With `is_recorded` steps on a GPU are recorded, which pays where rows join only once."""
        self._engine = engine
        never = never_written(reader.vocabulary)[: reader.num_predicted].nonzero().squeeze(1)
        never = never.to(engine.device)
        self._forbidden = {True: never, False: never[never != UNKNOWN]}
        self.rows: list[GrowingText] = []
        self._cache: Any = engine.model.new_ragged_cache()
        self._hidden_ND = torch.zeros(0)
        memories, output = engine.memories, engine.model.output
        self._memory = None if memories is None else memories.rows(output.edges[-1])
        self._mixture: Mixture | None = None
        is_ragged = isinstance(self._cache, RaggedCache)
        self._is_recorded = is_recorded and is_ragged and engine.device.type == "cuda"
        self._recorded: RecordedStep | None = None

    @torch.inference_mode()
    def join(self, rows: Sequence[GrowingText]) -> None:
        """They are part of the next step."""
        inputs = [self._engine.inputs(row.prompt) for row in rows]
        for row in rows:
            row.has_slid = len(row.prompt) + 1 > self._engine.longest
        texts, cache = self._read(inputs)
        hidden_ND = torch.stack([hidden_TD[-1] for hidden_TD in texts])
        if self._memory is not None:
            pairs = zip(rows, texts, strict=True)
            self._memory.join([self._engine.pairs(row.prompt, text) for row, text in pairs])
        capacity = max(row.room(self._engine) for row in rows)
        self._cache.join(cache, [len(ids) for ids in inputs], capacity)
        self._hidden_ND = torch.cat([self._hidden_ND, hidden_ND]) if self.rows else hidden_ND
        self.rows = [*self.rows, *rows]

    @torch.inference_mode()
    def leave(self, rows: Sequence[GrowingText]) -> None:
        """Rows that need no further step."""
        if not rows:
            return
        leaving = set(rows)
        gone = {place for place, row in enumerate(self.rows) if row in leaving}
        order = self._cache.drop(gone)
        self.rows = [self.rows[place] for place in order]
        places_N = self._tensor(order)
        self._hidden_ND = self._hidden_ND[places_N]
        if self._memory is not None:
            self._memory.keep(order, places_N)

    @torch.inference_mode()
    def step(self) -> None:
        """One id more for every row; those that are complete have left."""
        if self._memory is not None:
            self._mixture = self._memory.look(self._hidden_ND)
        drawn, top = self._draw(), self._top()
        for row, (token, logprob), likely in zip(self.rows, drawn, top, strict=True):
            row.add(token, logprob, likely)
        if complete := [row for row in self.rows if row.finish_reason]:
            self.leave(complete)
        if self.rows:
            self._advance()

    def _tensor(self, places: Sequence[int]) -> Tensor:
        return torch.tensor(places, dtype=torch.int64, device=self._engine.device)

    def _mix(self, places_M: Tensor) -> Mix | None:
        return None if self._mixture is None else self._mixture.mix(places_M)

    def _draw(self) -> list[tuple[int, float]]:
        """Ids and log-probabilities; rows that draw in the same way do so together."""
        alike: dict[tuple[float, int, float, bool], list[int]] = defaultdict(list)
        for place, row in enumerate(self.rows):
            asked = row.options
            choice = (asked.temperature, asked.top_k, asked.top_p, asked.forbid_unknown)
            alike[choice].append(place)
        found: dict[int, tuple[int, float]] = {}
        for (temperature, top_k, top_p, forbid_unknown), places in alike.items():
            is_all, places_M = len(places) == len(self.rows), self._tensor(places)
            ids, logprobs = draw(
                self._engine.model.output,
                self._hidden_ND if is_all else self._hidden_ND[places_M],
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                forbidden=self._forbidden[forbid_unknown],
                uniform=[self.rows[place].random() for place in places],
                mix=self._mix(places_M),
            )
            drawn = zip(ids.tolist(), logprobs.tolist(), strict=True)
            found |= zip(places, drawn, strict=True)
        if not all(math.isfinite(logprob) for _, logprob in found.values()):
            raise diverged()
        return [found[place] for place in range(len(self.rows))]

    def _top(self) -> list[Likely]:
        top: list[Likely] = [[] for _ in self.rows]
        places = [place for place, row in enumerate(self.rows) if row.top]
        if places:
            k = max(self.rows[place].top for place in places)
            places_M = self._tensor(places)
            hidden_MD, mix = self._hidden_ND[places_M], self._mix(places_M)
            values, ids = most_likely(self._engine.model.output, hidden_MD, k, mix)
            for place, *found in zip(places, ids.tolist(), values.tolist(), strict=True):
                top[place] = list(zip(*found, strict=True))[: self.rows[place].top]
        return top

    def _advance(self) -> None:
        """The model reads the ids that were written last."""
        ids = [row.ids[-1] for row in self.rows]
        ids_N = self._tensor(ids)
        if self._memory is not None:
            self._memory.add(self._hidden_ND, ids, ids_N)
        full = self._cache.full(self._engine.blocks.block)
        if full:
            self._cache.empty(full)
        if len(full) < len(self.rows):
            self._hidden_ND = self._next(ids_N)
        if full:  # whatever was computed for them
            self._slide(full)

    def _next(self, ids_N: Tensor) -> Tensor:
        model, cache = self._engine.model, self._cache
        if not self._is_recorded:
            hidden_ND: Tensor = model(ids_N.unsqueeze(1), cache)[:, -1]
            return hidden_ND
        if self._recorded is None or not self._recorded.fits:
            self._recorded = RecordedStep(model, cache)
        return self._recorded(ids_N)

    def _slide(self, places: list[int]) -> None:
        """These rows go on behind their last tokens."""
        context = max(self._engine.blocks.context, 1)
        rows = [self.rows[place] for place in places]
        inputs = [np.append(row.prompt, row.ids)[-context:] for row in rows]
        texts, cache = self._read(inputs)
        hidden_ND = torch.stack([hidden_TD[-1] for hidden_TD in texts])
        self._cache.fill(places, cache, [len(ids) for ids in inputs])
        self._hidden_ND = self._hidden_ND.index_copy(0, self._tensor(places), hidden_ND)
        for row in rows:
            row.has_slid = True

    def _read(self, inputs: Sequence[Ids]) -> tuple[list[Tensor], Any]:
        """The vectors after each of these ids, and what the model keeps of them; equal texts it
        reads once."""
        different = {ids.tobytes(): ids for ids in inputs}
        place_of = {key: place for place, key in enumerate(different)}
        texts, cache = self._engine.model.read([*map(torch.from_numpy, different.values())])
        if len(different) < len(inputs):
            places = [place_of[ids.tobytes()] for ids in inputs]
            texts, cache = [texts[place] for place in places], cache.select(self._tensor(places))
        return texts, cache


def never_written(vocabulary: Vocabulary) -> Tensor:
    """Ids that stand for no word: specials but the line end, and fillers."""
    names = zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)
    forbidden = torch.tensor([not count and word.startswith(FILLER) for word, count in names])
    forbidden[: len(SPECIALS)] = True
    forbidden[END] = False
    return forbidden
