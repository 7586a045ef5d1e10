"""Writing: words drawn one after the other, many texts at a time.

Every word passes the decoder once; what came before it is in a cache. When the cache is full, as
long as the block, the model goes on behind the last `context` tokens, as scoring does when it
slides over a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zipflm.data.bpe import join
from zipflm.data.vocabulary import END, FILLER, SPECIALS, UNKNOWN, Vocabulary
from zipflm.language.engine import Engine, diverged
from zipflm.language.next_words import MOST_PIECES
from zipflm.language.text import EncodedText, Ids, TextReader
from zipflm.model.kv_cache import KeyValueCache
from zipflm.model.recorded_step import RecordedStep
from zipflm.model.sampling import draw

_SEEDS = 2**63


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What to draw from, and when to stop."""

    max_words: int = 50
    """Line ends count as words, so that a model that writes only those stops, too."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    lines: int = 1
    """Line ends after which a text is complete; 0 goes on to `max_words`."""
    forbid_unknown: bool = True

    def __post_init__(self) -> None:
        if self.max_words < 1:
            raise ValueError(f"max_words={self.max_words}: must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature={self.temperature}: must be 0 (the most likely word) or more"
            )
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: must be 0 (all words) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must lie above 0, up to 1 (all words)")
        if self.lines < 0:
            raise ValueError(f"lines={self.lines}: must be 0 (no limit) or more")
        if self.seed is not None and not 0 <= self.seed < _SEEDS:
            raise ValueError(f"seed={self.seed}: must be a whole number from 0 to 2**63 - 1")


class WrittenWord(NamedTuple):
    """A word that was written, or the end of a line."""

    word: str
    """As the vocabulary spells it; `</s>` for the end of a line."""
    logprob: float
    """The model's own, in nats, whatever was asked to draw from."""
    text: str
    """What it adds to the text: with the space or line end before it, where there is one."""


@dataclass(frozen=True)
class Generation:
    """One continuation of a prompt."""

    prompt: str
    continuation: str
    """What was written, as readable text."""
    words: tuple[WrittenWord, ...]
    has_slid: bool
    """Whether it outgrew the block, so that its later words were written without its beginning."""

    @property
    def text(self) -> str:
        return self.prompt + self.continuation

    @property
    def logprob(self) -> float:
        """Of what was written, in nats."""
        return sum(word.logprob for word in self.words)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "prompt": self.prompt,
            "continuation": self.continuation,
            "logprob": self.logprob,
            "words": [{"word": word.word, "logprob": word.logprob} for word in self.words],
            "has_slid": self.has_slid,
        }

    def __str__(self) -> str:
        return self.text


class Writer:
    """Continues one prompt, `num` times at once."""

    def __init__(
        self, engine: Engine, reader: TextReader, prompt: str, sampling: Sampling, num: int
    ) -> None:
        if num < 1:
            raise ValueError(f"num={num}: must be at least 1")
        self._engine, self._sampling = engine, sampling
        encoded = reader.text(prompt, ends=False) if prompt else None
        self.unknown_in_prompt: list[str] = [] if encoded is None else _unknown(encoded)
        """Words of the prompt that the model reads as `<unk>`."""
        self._prompt = prompt
        self._ids = np.zeros(0, dtype=np.int64) if encoded is None else encoded.ids
        self._texts = [_Text(prompt, encoded, reader, sampling) for _ in range(num)]
        self.has_slid: bool = len(self._ids) + 1 > engine.blocks.block
        forbidden = never_written(reader.vocabulary, sampling.forbid_unknown)
        self._forbidden = forbidden[: reader.num_predicted]

    def all(self) -> list[Generation]:
        for _ in self._steps():
            pass
        return [
            Generation(
                self._prompt,
                "".join(word.text for word in text.words),
                tuple(text.words),
                self.has_slid,
            )
            for text in self._texts
        ]

    def words(self) -> Iterator[WrittenWord]:
        """Those of the first text, each as soon as it is there."""
        told = 0
        for _ in self._steps():
            yield from self._texts[0].words[told:]
            told = len(self._texts[0].words)

    @torch.inference_mode()
    def _steps(self) -> Iterator[None]:
        """One token more for every text that is not complete."""
        engine, sampling = self._engine, self._sampling
        generator = torch.Generator(engine.device)
        if sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(sampling.seed)
        forbidden = self._forbidden.to(engine.device)
        memory = _Memory(engine, self._ids, len(self._texts))
        rows = self._texts
        while True:
            ids, logprobs = draw(
                engine.model.output,
                memory.hidden,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                forbidden=forbidden,
                generator=generator,
            )
            if not logprobs.isfinite().all():
                raise diverged()
            for text, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
                if not text.is_complete:
                    text.add(token, logprob)
            yield
            going_on = [row for row, text in enumerate(rows) if not text.is_complete]
            if not going_on:
                return
            # Not at every end of a text: a smaller cache has to be made first.
            if len(going_on) <= len(rows) / 2:
                rows = [rows[row] for row in going_on]
                kept = torch.tensor(going_on, device=engine.device)
                memory.keep(kept)
                ids = ids[kept]
            memory.add(ids)
            self.has_slid |= memory.has_slid


class _Text:
    """One text while it is written."""

    def __init__(
        self, prompt: str, encoded: EncodedText | None, reader: TextReader, sampling: Sampling
    ) -> None:
        self.words: list[WrittenWord] = []
        self._reader, self._sampling = reader, sampling
        self._pieces: list[str] = []
        self._logprob = 0.0
        self._num_lines = 0
        self._joiner = reader.encoder.splitter.joiner()
        # The space before the first word may be the prompt's last character.
        self._has_space = prompt[-1:].isspace()
        if encoded is not None:
            line_ends = encoded.line_ends
            for word in encoded.words[line_ends[-1] + 1 if len(line_ends) else 0 :]:
                self._joiner.add(word)

    @property
    def is_complete(self) -> bool:
        if self._pieces:
            return False
        has_lines = 0 < self._sampling.lines <= self._num_lines
        return has_lines or len(self.words) >= self._sampling.max_words

    def add(self, token: int, logprob: float) -> None:
        self._pieces.append(self._reader.vocabulary.words[token])
        self._logprob += logprob
        # A model may go on with the pieces of one word for ever.
        if not self._reader.ends_word[token] and len(self._pieces) < MOST_PIECES:
            return
        word = join(self._pieces)
        if token == END and len(self._pieces) == 1:
            self._num_lines += 1
            self._joiner = self._reader.encoder.splitter.joiner()
            text = "\n"
        else:
            text = self._joiner.add(word)
            text = text.lstrip(" ") if self._has_space else text
        self._has_space = False
        self.words.append(WrittenWord(word, self._logprob, text))
        self._pieces, self._logprob = [], 0.0


class _Memory:
    """What the model has seen of every text, and the vectors that predict what comes next."""

    def __init__(self, engine: Engine, prompt: Ids, rows: int) -> None:
        self._engine = engine
        self.has_slid = False
        inputs = torch.from_numpy(engine.inputs(prompt)).to(engine.device)
        self._recent = [inputs.expand(rows, -1)]
        # One pass for all: until here the texts are the same.
        cache = engine.model.new_cache(1, engine.blocks.block)
        self.hidden = engine.model(inputs[None], cache)[:, -1].expand(rows, -1)
        self._remember(cache.repeat(rows))

    def keep(self, rows: Tensor) -> None:
        """Forget all texts but these."""
        self._recent = [part[rows] for part in self._recent]
        self._remember(self._cache.select(rows))

    def add(self, ids: Tensor) -> None:
        """One token more of every text."""
        self._recent.append(ids[:, None])
        if self._cache.length == self._cache.capacity:
            self._slide()
        elif self._step is not None:
            self.hidden = self._step(ids)
        else:
            self.hidden = self._engine.model(ids[:, None], self._cache)[:, -1]

    def _remember(self, cache: KeyValueCache) -> None:
        self._cache = cache
        is_recorded = self._engine.device.type == "cuda"
        self._step = RecordedStep(self._engine.model, cache) if is_recorded else None

    def _slide(self) -> None:
        context = max(self._engine.blocks.context, 1)
        words = torch.cat(self._recent, dim=1)[:, -context:]
        self._recent = [words]
        self._cache.truncate(0)
        self.hidden = self._engine.model(words, self._cache)[:, -1]
        self.has_slid = True


def never_written(vocabulary: Vocabulary, forbid_unknown: bool) -> Tensor:
    """Ids that stand for no word: specials but the line end, and fillers."""
    names = zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)
    forbidden = torch.tensor([not count and word.startswith(FILLER) for word, count in names])
    forbidden[: len(SPECIALS)] = True
    forbidden[END] = False
    forbidden[UNKNOWN] = forbid_unknown
    return forbidden


def _unknown(encoded: EncodedText) -> list[str]:
    is_unknown = encoded.ids[encoded.starts] == UNKNOWN
    return [word for word, unknown in zip(encoded.words, is_unknown, strict=True) if unknown]
