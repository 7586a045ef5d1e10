"""Completions: requests and answers as OpenAI's service has them.

A token is an id of the vocabulary: a word, the end of a line, or a piece of a word. The end of a
line ends the text, as `zipflm generate` has it; `lines` asks for more.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zipflm.data.vocabulary import END
from zipflm.quoting import quoted
from zipflm.serving.continuation import Continuation, Delta, WrittenToken
from zipflm.serving.errors import bad_request
from zipflm.serving.fields import Fields
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import Prompt, read_prompts
from zipflm.serving.requests import (
    MOST_ALTERNATIVES,
    MOST_LISTED,
    MOST_TEXTS,
    chosen_model,
    require_length,
)
from zipflm.serving.scoring import Document, DocumentScores, Likely
from zipflm.serving.steps import Choice, Row, generator_of
from zipflm.serving.tickets import Limits

_MOST_STOPS = 16
_LONGEST_STOP = 1_000
_HOTTEST = 100.0
_SEEDS = 2**63

FIELDS = (
    "model prompt max_tokens temperature top_p top_k n seed stop stream stream_options logprobs "
    "echo lines best_of suffix frequency_penalty presence_penalty logit_bias user"
).split()


@dataclass(frozen=True)
class CompletionRequest:
    """Prompts, and how each is to be continued."""

    model: ServedModel
    prompts: list[Prompt]
    max_tokens: int
    choice: Choice
    n: int
    """Continuations of every prompt."""
    seed: int | None
    stop: list[str]
    lines: int
    logprobs: int | None
    """How many of the most likely tokens stand beside every token; None: no log-probabilities."""
    echo: bool
    is_streamed: bool
    with_usage: bool
    """Whether a stream ends with the numbers of tokens."""
    warnings: list[str]
    name: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self.n]

    def documents(self) -> list[Document]:
        """The prompts, where their own log-probabilities are wanted."""
        if not self.echo or self.logprobs is None:
            return []
        return [
            Document(prompt.ids, asked=np.arange(len(prompt.ids)), top=self.logprobs)
            for prompt in self.prompts
        ]

    def rows(self) -> list[Row]:
        """One for each choice, in order; none if nothing is to be written."""
        if not self.max_tokens:
            return []
        return [
            Row(
                prompt.ids,
                self.choice,
                generator_of(self.seed, number),
                Continuation(
                    prompt.spelling(self.model.reader),
                    max_tokens=self.max_tokens,
                    lines=self.lines,
                    stop=self.stop,
                ),
                self.logprobs or 0,
            )
            for prompt in self.prompts
            for number in range(self.n)
        ]


def completion_request(
    values: Mapping[str, Any], models: Mapping[str, ServedModel], limits: Limits
) -> CompletionRequest:
    """Refusal, naming the field, for what cannot be answered."""
    fields = Fields(values)
    model = chosen_model(fields, models)
    prompts = read_prompts(model, fields.get("prompt"), limits)
    n = fields.integer("n", 1, 1, MOST_TEXTS)
    if len(prompts) * n > MOST_TEXTS:
        raise bad_request(
            "prompt", f"prompt: {len(prompts)} prompts and n={n}: at most {MOST_TEXTS} texts"
        )
    max_tokens = fields.integer("max_tokens", 16, 0, limits.max_words)
    for prompt in prompts:
        require_length("prompt", len(prompt.tokens) + max_tokens, limits)
    for name in ("frequency_penalty", "presence_penalty"):
        fields.refuse_unless_default(name, 0)
    fields.refuse_unless_default("logit_bias", {})
    fields.refuse_unless_default("suffix", "")
    fields.refuse_unless_default("best_of", n)
    vocabulary = len(model.reader.vocabulary)
    listed = fields.integer("logprobs", -1, 0, MOST_ALTERNATIVES)
    echo = fields.flag("echo")
    if listed >= 0:
        repeated = sum(len(prompt.tokens) for prompt in prompts) if echo else 0
        _require_few(n * (repeated + len(prompts) * max_tokens), listed)
    return CompletionRequest(
        model=model,
        prompts=prompts,
        max_tokens=max_tokens,
        choice=_choice(fields, vocabulary),
        n=n,
        seed=_seed(fields),
        stop=_stop(fields),
        lines=fields.integer("lines", 1, 0, limits.max_words),
        logprobs=None if listed < 0 else min(listed, vocabulary),
        echo=echo,
        is_streamed=fields.flag("stream"),
        with_usage=_with_usage(fields),
        warnings=fields.warnings(FIELDS),
    )


def _require_few(tokens: int, listed: int) -> None:
    """Every choice repeats its prompt's, and the answer is written while all others wait."""
    if tokens * max(listed, 1) > MOST_LISTED:
        raise bad_request(
            "logprobs",
            f"logprobs={listed} for up to {tokens} tokens of all texts is more than the "
            f"{MOST_LISTED} of one answer; ask for fewer, or for fewer texts at once",
        )


def _choice(fields: Fields, vocabulary: int) -> Choice:
    temperature = fields.number("temperature", 1.0, 0.0, _HOTTEST)
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    top_k = fields.integer("top_k", 0, 0, 2**31)
    if temperature == 0 or top_p == 0:  # the smallest set of words is the most likely one
        return Choice(0.0, 0, 1.0)
    return Choice(temperature, min(top_k, vocabulary), top_p)


def _seed(fields: Fields) -> int | None:
    seed = fields.integer("seed", -_SEEDS - 1, -_SEEDS, _SEEDS - 1)
    return None if seed < -_SEEDS else seed % _SEEDS


def _stop(fields: Fields) -> list[str]:
    stop = fields.get("stop")
    if stop is None:
        return []
    stop = stop if isinstance(stop, list) else [stop]
    if len(stop) > _MOST_STOPS:
        raise bad_request("stop", f"stop: {len(stop)} texts; give {_MOST_STOPS} at most")
    for each in stop:
        if not isinstance(each, str) or not 0 < len(each) <= _LONGEST_STOP:
            raise bad_request(
                "stop",
                f"stop: {quoted(each)}: must be a text of 1 to {_LONGEST_STOP} characters",
            )
    return stop


def _with_usage(fields: Fields) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise bad_request("stream_options", f"stream_options={quoted(options)}: give an object")
    return Fields(options).flag("include_usage")


class CompletionAnswer:
    """What has been written so far, in OpenAI's shape."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request
        self._choices = [Delta() for _ in range(request.num_choices)]
        self._scores: list[DocumentScores | None] = [None] * len(request.prompts)
        if not request.max_tokens:
            for choice in self._choices:
                choice.finish_reason = "length"

    def add_scores(self, place: int, scores: DocumentScores) -> None:
        """Of a prompt."""
        self._scores[place] = scores

    def add(self, index: int, delta: Delta) -> None:
        """There is more of a choice."""
        choice = self._choices[index]
        choice.text += delta.text
        choice.tokens += delta.tokens
        choice.finish_reason = delta.finish_reason

    @property
    def is_complete(self) -> bool:
        return all(choice.finish_reason for choice in self._choices)

    def whole(self) -> dict[str, Any]:
        choices = [
            self._choice(index, choice, begins=True) for index, choice in enumerate(self._choices)
        ]
        return self._envelope(choices) | {"usage": self._usage()}

    def _chunk(self, index: int, delta: Delta, begins: bool) -> dict[str, Any]:
        usage = {"usage": None} if self._request.with_usage else {}
        return self._envelope([self._choice(index, delta, begins)]) | usage

    def first_chunks(self) -> Iterator[dict[str, Any]]:
        """What a stream begins with: the prompts, if they are to be repeated, and choices of which
        nothing is written."""
        for index, choice in enumerate(self._choices):
            if self._request.echo or choice.finish_reason:
                delta = Delta(finish_reason=choice.finish_reason)
                yield self._chunk(index, delta, begins=True)

    def chunk(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """A part of a stream; None if there is nothing to say."""
        has_tokens = delta.tokens and self._request.logprobs is not None
        if not (delta.text or delta.finish_reason or has_tokens):
            return None
        return self._chunk(index, delta, begins=False)

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        if self._request.with_usage:
            yield self._envelope([]) | {"usage": self._usage()}

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        request = self._request
        return {
            "id": request.name,
            "object": "text_completion",
            "created": request.created,
            "model": request.model.name,
            "system_fingerprint": request.model.fingerprint,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        prompts = sum(len(prompt.tokens) for prompt in self._request.prompts)
        written = sum(len(choice.tokens) for choice in self._choices)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": written,
            "total_tokens": prompts + written,
        }

    def _choice(self, index: int, delta: Delta, begins: bool) -> dict[str, Any]:
        """With the prompt, where that is to be repeated and the choice `begins` here."""
        request, prompt = self._request, self._request.prompt_of(index)
        has_prompt = request.echo and begins
        logprobs = None
        if request.logprobs is not None:
            logprobs = _Logprobs(request.model)
            if has_prompt:
                scores = self._scores[index // request.n]
                assert scores is not None
                logprobs.add_prompt(prompt, scores)
            logprobs.add_written(delta.tokens, len(prompt.text) if request.echo else 0)
        return {
            "text": (prompt.text if has_prompt else "") + delta.text,
            "index": index,
            "logprobs": None if logprobs is None else logprobs.columns,
            "finish_reason": delta.finish_reason,
        }


class _Logprobs:
    """The four lists of a choice's log-probabilities; tokens are spelt as in the vocabulary."""

    def __init__(self, model: ServedModel) -> None:
        self._words = model.lm.vocabulary.words
        self.columns: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def add_prompt(self, prompt: Prompt, scores: DocumentScores) -> None:
        offsets = prompt.offsets
        if prompt.has_start:
            self._add(END, None, [], offsets[0])
            offsets = offsets[1:]
        values = (-scores.nll.astype(np.float64)).tolist()
        tops: Sequence[Likely] = scores.top or [[]] * len(values)
        columns = zip(prompt.ids.tolist(), values, tops, offsets, strict=True)
        for token, logprob, top, offset in columns:
            self._add(token, logprob, top, offset)

    def add_written(self, tokens: Sequence[WrittenToken], offset: int) -> None:
        for each in tokens:
            self._add(each.token, each.logprob, each.top, offset + each.offset)

    def _add(self, token: int, logprob: float | None, top: Likely, offset: int) -> None:
        word = self._words[token]
        likely = None
        if logprob is not None:
            # The token's own number last: it comes from another product, and whoever compares the
            # two must find them equal.
            likely = {self._words[each]: value for each, value in top} | {word: logprob + 0.0}
        self.columns["tokens"].append(word)
        self.columns["token_logprobs"].append(None if logprob is None else logprob + 0.0)
        self.columns["top_logprobs"].append(likely)
        self.columns["text_offset"].append(offset)
