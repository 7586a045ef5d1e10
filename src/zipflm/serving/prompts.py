"""Texts and ids of requests, encoded and checked against the limits.

A model predicts every text after a `</s>`, which need not be given. A prompt that begins with one
means the same as without it, except that it is a token of the prompt, the only one without a
log-probability. Harnesses that put a first token of their own before a text get the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zipflm.data.vocabulary import CONTINUES, END, SPECIALS, UNKNOWN
from zipflm.language.decoding import Spelling, last_line
from zipflm.language.text import EncodedText, Ids, TextReader
from zipflm.messages import quoted
from zipflm.serving.models import ServedModel
from zipflm.serving.queue import Limits
from zipflm.serving.schemas import Refusal, bad_request

_START = SPECIALS[END]


@dataclass(frozen=True)
class Prompt:
    """The tokens that a model reads before it writes."""

    text: str
    tokens: Ids
    """All ids, the `</s>` at the start included if it was given."""
    has_start: bool
    offsets: list[int]
    """Where in the text each id begins."""
    words: Sequence[str]
    """Words of the last line, which is not complete."""
    is_tight: bool
    """Whether the continuation follows without a space."""

    @property
    def ids(self) -> Ids:
        """Without the `</s>` that every text follows."""
        return self.tokens[1:] if self.has_start else self.tokens

    def spelling(self, reader: TextReader) -> Spelling:
        """For the continuation of this prompt."""
        return Spelling(reader, self.words, self.is_tight)


def encode(
    model: ServedModel, param: str, text: str, limits: Limits, ends: bool = False
) -> EncodedText:
    """The ids of a text; Refusal if it is empty, too long or not a text."""
    if len(text) > limits.max_characters:  # counting its words would take much longer
        raise _too_long(param, f"{len(text)} characters", limits.max_characters)
    if not text:
        raise bad_request(param, f"{param}: empty; give at least one word", "empty")
    return _read(model, param, text, ends)


def _read(model: ServedModel, param: str, text: str, ends: bool) -> EncodedText:
    try:
        return model.reader.text(text, ends=ends)
    except ValueError as error:
        raise bad_request(param, f"{param}: {error}") from None


def require_length(param: str, number: int, limits: Limits) -> None:
    if number > limits.max_words:
        raise _too_long(param, f"{number} words", limits.max_words)


def _too_long(param: str, size: str, limit: int) -> Refusal:
    message = f"{param}: {size}, and a text has {limit} at most here (--max-words)"
    return bad_request(param, message, "context_length_exceeded")


def read_prompt(model: ServedModel, value: str | list[int], limits: Limits) -> Prompt:
    """Refusal for a prompt that is empty, too long, or not made of the vocabulary's ids."""
    if isinstance(value, str):
        prompt = _of_text(model, value, limits)
    else:
        require_ids("prompt", value, model, limits)
        prompt = _of_ids(model.reader, value)
    if not len(prompt.tokens):
        message = f"prompt: empty; give at least one word, or {_START} to write from the beginning"
        raise bad_request("prompt", message, "empty")
    return prompt


def require_ids(param: str, ids: Sequence[int], model: ServedModel, limits: Limits) -> None:
    require_length(param, len(ids), limits)
    size = len(model.reader.vocabulary)
    for token in ids:
        if not 0 <= token < size:
            raise bad_request(param, f"{param}: {quoted(token)} is no id; give 0 to {size - 1}")


def tokenize(model: ServedModel, text: str) -> list[int]:
    """The ids of a text of any length, which may be empty; all are of the vocabulary."""
    start = _start_length(text)
    rest = _read(model, "prompt", text[start:], False).ids.tolist() if text[start:] else []
    size = len(model.reader.vocabulary)
    known = [token if token < size else UNKNOWN for token in rest]
    return [END, *known] if start else known


def detokenize(reader: TextReader, ids: list[int]) -> str:
    """A text from which `tokenize` makes the same ids wherever spelling allows it."""
    has_start = ids[:1] == [END]
    text, _, _ = _spelled(reader, ids[1:] if has_start else ids)
    return " ".join([_START, text] if text else [_START]) if has_start else text


def _of_text(model: ServedModel, text: str, limits: Limits) -> Prompt:
    start = _start_length(text)
    tokens: Ids = np.zeros(0, dtype=np.int64)
    offsets: list[int] = []
    words: Sequence[str] = []
    if text[start:]:
        encoded = encode(model, "prompt", text[start:], limits)
        tokens, words = encoded.ids, last_line(encoded)
        offsets = [start + place for place in _offsets(model.reader, encoded)]
    if start:
        tokens, offsets = np.append(END, tokens), [0, *offsets]
    return Prompt(text, tokens, start > 0, offsets, words, is_tight=text[-1:].isspace())


def _start_length(text: str) -> int:
    """How many characters of a text spell the `</s>` that every text follows.

    Found here, because a rule that splits words may take it apart.
    """
    is_start = text.startswith(_START) and not text[len(_START) :][:1].strip()
    return len(_START) if is_start else 0


def _offsets(reader: TextReader, encoded: EncodedText) -> list[int]:
    """Where each id stands; the pieces of a word follow each other in its span."""
    offsets = []
    names = reader.vocabulary.words
    bounds = [*encoded.starts.tolist(), len(encoded.ids)]
    for (start, end), first, last in zip(encoded.spans, bounds[:-1], bounds[1:], strict=True):
        for token in encoded.ids[first:last].tolist():
            offsets.append(min(start, end))
            start += len(names[token].removesuffix(CONTINUES)) if last - first > 1 else 0
    return offsets


def _of_ids(reader: TextReader, ids: list[int]) -> Prompt:
    has_start = ids[:1] == [END]
    text, offsets, is_within_word = _spelled(reader, ids[1:] if has_start else ids)
    if has_start:
        offsets = [0, *offsets]
    tokens = np.array(ids, dtype=np.int64)
    return Prompt(text, tokens, has_start, offsets, _last_line(reader, ids), is_within_word)


def _spelled(reader: TextReader, ids: list[int]) -> tuple[str, list[int], bool]:
    """Ids as text, where each begins, and whether the text ends within a word."""
    spelling = Spelling(reader)
    text = "".join([spelling.add(token) for token in ids])
    is_within_word = spelling.is_within_word
    text += spelling.finish()
    return text, spelling.offsets, is_within_word


def _last_line(reader: TextReader, ids: list[int]) -> list[str]:
    """The words after the last line end."""
    last = max((place for place, token in enumerate(ids) if token == END), default=-1)
    words, pieces = [], ""
    for token in ids[last + 1 :]:
        pieces += reader.vocabulary.words[token].removesuffix(CONTINUES)
        if reader.ends_word[token]:
            words.append(pieces)
            pieces = ""
    return [*words, pieces] if pieces else words
