"""Continuations of a prompt, complete or streamed word by word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zipflm.data.vocabulary import UNKNOWN
from zipflm.language.decoding import GeneratedWord, SamplingOptions, TextDecoder, TextInProgress
from zipflm.language.detokenizer import Detokenizer, last_line
from zipflm.language.engine import Engine
from zipflm.language.text import TextReader


@dataclass(frozen=True)
class Generation:
    """One continuation of a prompt."""

    prompt: str
    continuation: str
    words: tuple[GeneratedWord, ...]
    has_slid: bool
    """True if the text is longer than the block of a Transformer, so later words did not see its
    start."""

    @property
    def text(self) -> str:
        return self.prompt + self.continuation

    @property
    def logprob(self) -> float:
        """Log-probability of the continuation in nats."""
        return sum(word.logprob for word in self.words)

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "continuation": self.continuation,
            "logprob": self.logprob,
            "words": [{"word": word.word, "logprob": word.logprob} for word in self.words],
            "has_slid": self.has_slid,
        }

    def __str__(self) -> str:
        return self.text


class TextGenerator:
    """Generates `num` continuations of a prompt in one batch."""

    def __init__(
        self, engine: Engine, reader: TextReader, prompt: str, options: SamplingOptions, num: int
    ) -> None:
        if num < 1:
            raise ValueError(f"num={num}: must be at least 1")
        self._prompt = prompt
        encoded = reader.text(prompt, ends=False)
        self.unknown_in_prompt: list[str] = [
            word
            for word, first_id in zip(encoded.words, encoded.ids[encoded.starts], strict=True)
            if first_id == UNKNOWN
        ]
        self._decoder = TextDecoder(engine, reader, use_cuda_graph=True)
        self._rows = []
        for index in range(num):
            detokenizer = Detokenizer(reader, last_line(encoded), prompt[-1:].isspace())
            row = TextInProgress(reader, encoded.ids, detokenizer, options, index=index)
            self._rows.append(row)

    @property
    def has_slid(self) -> bool:
        return any(row.has_slid for row in self._rows)

    def all(self) -> list[Generation]:
        """Generate all texts."""
        for _ in self._steps():
            pass
        return [
            Generation(self._prompt, row.text, tuple(row.release().words), row.has_slid)
            for row in self._rows
        ]

    def words(self) -> Iterator[GeneratedWord]:
        """Yield the words of the first text as they are generated."""
        for _ in self._steps():
            yield from self._rows[0].release().words

    def _steps(self) -> Iterator[None]:
        self._decoder.join(self._rows)
        while self._decoder.rows:
            self._decoder.step()
            yield
