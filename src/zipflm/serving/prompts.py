"""Encodes the texts and token ids of requests, and checks their lengths.

Every text follows an implicit `</s>`, from which the model predicts its first token. A prompt may
also contain this `</s>`, as the prompts of evaluation harnesses do. The predictions are the same,
but the `</s>` then counts as a token of the prompt, without a log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zipflm.data.detokenizer import Detokenizer
from zipflm.data.vocabulary import CONTINUES, END, SPECIALS, UNKNOWN
from zipflm.language.text import EncodedText, Ids, TextReader, last_line
from zipflm.messages import quoted
from zipflm.serving.models import ServedModel
from zipflm.serving.schemas import APIError, bad_request
from zipflm.serving.worker import Limits

_START = SPECIALS[END]


@dataclass(frozen=True)
class Prompt:
    """An encoded prompt."""

    text: str
    tokens: Ids
    """All ids, including a `</s>` at the start if the request has one."""
    has_start: bool
    offsets: list[int]
    """Start of each token in the text."""
    words: Sequence[str]
    """Words of the last, incomplete line."""
    is_tight: bool
    """True if the continuation follows without a space, because the prompt ends with a space or in
    the middle of a word."""

    @property
    def ids(self) -> Ids:
        """All ids except a `</s>` at the start."""
        return self.tokens[1:] if self.has_start else self.tokens

    def detokenizer(self, reader: TextReader) -> Detokenizer:
        return reader.detokenizer(self.words, self.is_tight)


def encode(
    model: ServedModel, param: str, text: str, limits: Limits | None, ends: bool = False
) -> EncodedText:
    """Encode a text. `limits=None` allows any length."""
    if limits is not None and len(text) > limits.max_characters:  # much faster than tokenizing
        raise _too_long(param, f"{len(text)} characters", limits.max_characters, limits)
    if not text:
        raise bad_request(param, f"{param}: empty; give at least one word", "empty")
    try:
        return model.reader.text(text, ends=ends)
    except ValueError as error:
        raise bad_request(param, f"{param}: {error}") from None


def require_length(param: str, num_tokens: int, limits: Limits) -> None:
    if num_tokens > limits.max_text_tokens:
        raise _too_long(param, f"{num_tokens} tokens", limits.max_text_tokens, limits)


def _too_long(param: str, size: str, limit: int, limits: Limits) -> APIError:
    option = f"--max-text-tokens {limits.max_text_tokens}"
    message = f"{param}: {size}; the maximum is {limit} (from {option})"
    return bad_request(param, message, "context_length_exceeded")


def read_prompt(model: ServedModel, value: str | list[int], limits: Limits) -> Prompt:
    if isinstance(value, str):
        prompt = _prompt_from_text(model, value, limits)
    else:
        require_ids("prompt", value, model, limits)
        prompt = _prompt_from_ids(model.reader, value)
    if not len(prompt.tokens):
        message = f"prompt: empty; give at least one word, or {_START} to start a new text"
        raise bad_request("prompt", message, "empty")
    return prompt


def require_ids(param: str, ids: Sequence[int], model: ServedModel, limits: Limits) -> None:
    require_length(param, len(ids), limits)
    size = len(model.reader.vocabulary)
    for token in ids:
        if not 0 <= token < size:
            raise bad_request(
                param, f"{param}: {quoted(token)} is not a token id; give 0 to {size - 1}"
            )


def tokenize(model: ServedModel, text: str) -> list[int]:
    """Return the ids of a text of any length."""
    tokens = _prompt_from_text(model, text, None).tokens
    ids: list[int] = np.where(tokens < len(model.reader.vocabulary), tokens, UNKNOWN).tolist()
    return ids


def detokenize(reader: TextReader, ids: list[int]) -> str:
    """Return the text of ids, the inverse of `tokenize` where possible."""
    prompt = _prompt_from_ids(reader, ids)
    return f"{_START} {prompt.text}".rstrip(" ") if prompt.has_start else prompt.text


def _prompt_from_text(model: ServedModel, text: str, limits: Limits | None) -> Prompt:
    start = _start_length(text)
    tokens: Ids = np.zeros(0, dtype=np.int64)
    offsets: list[int] = []
    words: Sequence[str] = []
    if text[start:]:
        encoded = encode(model, "prompt", text[start:], limits)
        tokens, words = encoded.ids, last_line(encoded)
        offsets = [start + offset for offset in _offsets(model.reader, encoded)]
    if start:
        tokens, offsets = np.append(END, tokens), [0, *offsets]
    return Prompt(text, tokens, start > 0, offsets, words, is_tight=text[-1:].isspace())


def _start_length(text: str) -> int:
    """Return the length of a `</s>` at the start of a text (0 if there is none)."""
    is_start = text.startswith(_START) and not text[len(_START) :][:1].strip()
    return len(_START) if is_start else 0


def _offsets(reader: TextReader, encoded: EncodedText) -> list[int]:
    """Return the offset of each id in the text. A piece starts where the previous one ends."""
    offsets = []
    names = reader.vocabulary.words
    bounds = [*encoded.starts.tolist(), len(encoded.ids)]
    for (start, end), first, last in zip(encoded.spans, bounds[:-1], bounds[1:], strict=True):
        for token in encoded.ids[first:last].tolist():
            offsets.append(min(start, end))
            start += len(names[token].removesuffix(CONTINUES)) if last - first > 1 else 0
    return offsets


def _prompt_from_ids(reader: TextReader, ids: list[int]) -> Prompt:
    has_start = ids[:1] == [END]
    detokenizer = reader.detokenizer()
    text = "".join(map(detokenizer.add, ids[1:] if has_start else ids))
    is_within_word = detokenizer.is_within_word
    text += detokenizer.finish()
    offsets = [0, *detokenizer.offsets] if has_start else detokenizer.offsets
    tokens = np.array(ids, dtype=np.int64)
    return Prompt(text, tokens, has_start, offsets, detokenizer.line, is_within_word)
