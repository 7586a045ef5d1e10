"""Prompts of completions: text or ids, with what their ids spell and where.

A model predicts every text behind a `</s>`, which need not be given. A prompt that begins with one
means the same as without it, except that it is a token of the prompt, the only one without a
log-probability. Harnesses that put a first token of their own before a text get the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from zipflm.data.vocabulary import CONTINUES, END, SPECIALS
from zipflm.language.texts import EncodedText, Ids, TextReader
from zipflm.quoting import quoted
from zipflm.serving.continuation import Spelling
from zipflm.serving.errors import bad_request
from zipflm.serving.fields import is_integer
from zipflm.serving.models import ServedModel
from zipflm.serving.requests import MOST_TEXTS, require_characters, require_length
from zipflm.serving.tickets import Limits

_EMPTY = "prompt: empty; give at least one word, or </s> to write a text from its beginning"


@dataclass(frozen=True)
class Prompt:
    """What a model reads before it writes."""

    text: str
    tokens: Ids
    """All of its ids."""
    has_start: bool
    """Whether the first is the `</s>` that every text follows."""
    offsets: list[int]
    """Where in the text each id begins."""
    words: list[str]
    """Of its last line, which is not complete."""
    is_tight: bool
    """Whether what is written follows without a space."""

    @property
    def ids(self) -> Ids:
        """Without the `</s>` that every text follows."""
        return self.tokens[1:] if self.has_start else self.tokens

    def spelling(self, reader: TextReader) -> Spelling:
        """Of what follows it."""
        spelling = Spelling(reader, has_space=self.is_tight)
        spelling.follow(self.words)
        return spelling


def read_prompts(model: ServedModel, value: Any, limits: Limits | None = None) -> list[Prompt]:
    """A text, a list of texts, ids or a list of lists of ids; Refusal for anything else."""
    if limits is not None:
        _require_few(value, limits)
    if value is None:
        raise bad_request("prompt", "prompt: missing; give a text or ids", "missing")
    if isinstance(value, str):
        return [_of_text(model, value)]
    if not isinstance(value, list) or not value:
        raise bad_request("prompt", f"prompt={quoted(value)}: give a text, ids or a list of these")
    if all(is_integer(each) for each in value):
        return [_of_ids(model, value)]
    if all(isinstance(each, str) for each in value):
        return [_of_text(model, each) for each in value]
    if all(isinstance(each, list) for each in value):
        return [_of_ids(model, each) for each in value]
    raise bad_request("prompt", f"prompt={quoted(value)}: give texts or ids, not both")


def _require_few(value: Any, limits: Limits) -> None:
    """Check counts and lengths, which takes no time, before any text is encoded."""
    is_one = not isinstance(value, list) or any(map(is_integer, value[:1]))
    prompts = [value] if is_one else value
    if len(prompts) > MOST_TEXTS:
        raise bad_request("prompt", f"prompt: {len(prompts)} prompts; give {MOST_TEXTS} at most")
    for prompt in prompts:
        if isinstance(prompt, str):
            require_characters("prompt", prompt, limits)
        elif isinstance(prompt, list):
            require_length("prompt", len(prompt), limits)


def _of_text(model: ServedModel, text: str) -> Prompt:
    reader = model.reader
    start = start_of(text)
    encoded = encoded_or_refused(reader, text[start:]) if text[start:] else None
    tokens = np.zeros(0, dtype=np.int64) if encoded is None else encoded.ids
    if not start and not len(tokens):
        raise bad_request("prompt", _EMPTY, "empty")
    line_ends = [] if encoded is None else encoded.line_ends.tolist()
    offsets = [] if encoded is None else [start + place for place in _offsets(reader, encoded)]
    return Prompt(
        text,
        np.append(END, tokens) if start else tokens,
        has_start=start > 0,
        offsets=[0, *offsets] if start else offsets,
        words=[]
        if encoded is None
        else list(encoded.words[line_ends[-1] + 1 if line_ends else 0 :]),
        is_tight=text[-1].isspace(),
    )


def start_of(text: str) -> int:
    """How many characters of a text spell the `</s>` that every text follows.

    Looked for here, because a rule that splits words may take it apart.
    """
    name = SPECIALS[END]
    is_start = text.startswith(name) and not text[len(name) :][:1].strip()
    return len(name) if is_start else 0


def encoded_or_refused(reader: TextReader, text: str) -> EncodedText:
    try:
        return reader.text(text, ends=False)
    except ValueError as error:
        raise bad_request("prompt", f"prompt: {error}") from None


def _offsets(reader: TextReader, encoded: EncodedText) -> list[int]:
    """Where each id stands; pieces of a word stand behind each other in its span."""
    offsets = []
    names = reader.vocabulary.words
    bounds = [*encoded.starts.tolist(), len(encoded.ids)]
    for (start, end), first, last in zip(encoded.spans, bounds[:-1], bounds[1:], strict=True):
        for token in encoded.ids[first:last].tolist():
            offsets.append(min(start, end))
            start += len(names[token].removesuffix(CONTINUES)) if last - first > 1 else 0
    return offsets


def _of_ids(model: ServedModel, ids: list[Any]) -> Prompt:
    size = len(model.reader.vocabulary)
    if not ids:
        raise bad_request("prompt", _EMPTY, "empty")
    for token in ids:
        if not is_integer(token) or not 0 <= token < size:
            raise bad_request("prompt", f"prompt: {quoted(token)} is no id; give 0 to {size - 1}")
    tokens = np.array(ids, dtype=np.int64)
    has_start = ids[0] == END
    text, offsets, is_within_word = spelled(model.reader, ids[1:] if has_start else ids)
    lines = _words_of_last_line(model.reader, ids)
    return Prompt(
        text, tokens, has_start, [0, *offsets] if has_start else offsets, lines, is_within_word
    )


def spelled(reader: TextReader, ids: list[int]) -> tuple[str, list[int], bool]:
    """Ids as text, where each begins, and whether the text ends within a word."""
    spelling = Spelling(reader)
    text = "".join([spelling.add(token) for token in ids])
    is_within_word = spelling.is_within_word
    text += spelling.finish()
    return text, spelling.offsets, is_within_word


def _words_of_last_line(reader: TextReader, ids: list[int]) -> list[str]:
    last = max((place for place, token in enumerate(ids) if token == END), default=-1)
    words, pieces = [], ""
    for token in ids[last + 1 :]:
        pieces += reader.vocabulary.words[token].removesuffix(CONTINUES)
        if reader.ends_word[token]:
            words.append(pieces)
            pieces = ""
    return [*words, pieces] if pieces else words
