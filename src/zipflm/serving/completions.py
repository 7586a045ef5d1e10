"""`/v1/completions`: continuations of prompts, streamed or not.

A token is a word, a piece of a word, or the end of a line. By default, generation stops at the end
of the first line, as in `zipflm generate`; the field `lines` sets the number of lines.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

import numpy as np

from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.evaluation.documents import Document, DocumentScores, Likely
from zipflm.language.decoding import SEED_LIMIT, Delta, SamplingOptions, TextInProgress
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import Prompt, read_prompt, require_length
from zipflm.serving.schemas import (
    MAX_TEXTS,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    Logprobs,
    Usage,
    bad_request,
)
from zipflm.serving.scores import MAX_LOGPROBS
from zipflm.serving.worker import Limits


class Completion:
    """A request for completions and its response so far."""

    def __init__(self, request: CompletionRequest, model: ServedModel, limits: Limits) -> None:
        self._request, self.model = request, model
        self._options = _sampling(request)
        require_length("max_tokens", request.max_tokens, limits)
        self._prompts = [read_prompt(model, prompt, limits) for prompt in request.prompt]
        for prompt in self._prompts:
            require_length("prompt", len(prompt.tokens) + request.max_tokens, limits)
        count = len(self._prompts) * request.n
        if count > MAX_TEXTS:
            raise bad_request(
                "n", f"n={request.n}: {count} texts in total; the maximum is {MAX_TEXTS}"
            )
        self._check_logprob_limit(count * request.max_tokens)
        reason = None if request.max_tokens else "length"
        self._choices = [Delta(finish_reason=reason) for _ in range(count)]
        self.scores: dict[int, DocumentScores] = {}
        """Scores of the prompts that `documents` returns, by index."""
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())

    def _check_logprob_limit(self, tokens: int) -> None:
        """Limit the size of the response. With `echo`, every choice repeats its prompt."""
        if self._request.logprobs is None:
            return
        if self._request.echo:
            tokens += self._request.n * sum(len(prompt.tokens) for prompt in self._prompts)
        if tokens * max(self._request.logprobs, 1) > MAX_LOGPROBS:
            raise bad_request(
                "logprobs",
                f"logprobs={self._request.logprobs}: {tokens} tokens in all texts would exceed the "
                f"maximum of {MAX_LOGPROBS} log-probabilities; request fewer, or fewer texts",
            )

    def documents(self) -> list[Document]:
        """Return the prompts to score: all if the response includes their log-probabilities, else
        none."""
        if not self._request.echo or self._request.logprobs is None:
            return []
        return [
            Document(prompt.ids, asked=np.arange(len(prompt.ids)), top=self._num_likely)
            for prompt in self._prompts
        ]

    def rows(self) -> list[TextInProgress]:
        """Return the texts to generate, one per choice, or none if `max_tokens` is 0."""
        request, reader = self._request, self.model.reader
        if not request.max_tokens:
            return []
        return [
            TextInProgress(
                prompt.ids,
                prompt.detokenizer(reader),
                self._options,
                index=index,
                top=self._num_likely,
            )
            for prompt in self._prompts
            for index in range(request.n)
        ]

    @property
    def _num_likely(self) -> int:
        return min(self._request.logprobs or 0, self.model.reader.num_predicted)

    def add(self, index: int, delta: Delta) -> None:
        choice = self._choices[index]
        choice.text += delta.text
        choice.tokens += delta.tokens
        choice.finish_reason = delta.finish_reason

    @property
    def is_complete(self) -> bool:
        return all(choice.finish_reason for choice in self._choices)

    def full_response(self) -> CompletionResponse:
        choices = [
            self._choice(index, choice, is_first=True) for index, choice in enumerate(self._choices)
        ]
        return self._response(choices, self._usage())

    def first_chunks(self) -> Iterator[CompletionResponse]:
        """With `echo`, yield the prompts. If `max_tokens` is 0, yield the finished choices."""
        for index, choice in enumerate(self._choices):
            if self._request.echo or choice.finish_reason:
                delta = Delta(finish_reason=choice.finish_reason)
                yield self._response([self._choice(index, delta, is_first=True)])

    def chunks(self, index: int, delta: Delta) -> Iterator[CompletionResponse]:
        has_tokens = delta.tokens and self._request.logprobs is not None
        if delta.text or delta.finish_reason or has_tokens:
            yield self._response([self._choice(index, delta, is_first=False)])

    def last_chunks(self) -> Iterator[CompletionResponse]:
        if self._request.stream_options.include_usage:
            yield self._response([], self._usage())

    def _response(
        self, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> CompletionResponse:
        response = CompletionResponse(
            id=self._id,
            object="text_completion",
            created=self._created,
            model=self.model.name,
            system_fingerprint=self.model.fingerprint,
            choices=choices,
        )
        if usage or self._request.stream_options.include_usage:
            response.usage = usage
        return response

    def _usage(self) -> Usage:
        in_prompts = sum(len(prompt.tokens) for prompt in self._prompts)
        generated = sum(len(choice.tokens) for choice in self._choices)
        return Usage(
            prompt_tokens=in_prompts,
            completion_tokens=generated,
            total_tokens=in_prompts + generated,
        )

    def _choice(self, index: int, delta: Delta, is_first: bool) -> CompletionChoice:
        """Return one choice of a response or chunk. `is_first` is True for a full response and for
        the first chunk of a choice."""
        request, prompt_index = self._request, index // self._request.n
        prompt = self._prompts[prompt_index]
        has_prompt = request.echo and is_first
        logprobs = None
        if request.logprobs is not None:
            lists = _LogprobLists(self.model.lm.vocabulary.words)
            if has_prompt:
                lists.add_prompt(prompt, self.scores[prompt_index])
            offset = len(prompt.text) if request.echo else 0
            for token in delta.tokens:
                lists.add(token.token, token.logprob, token.top, offset + token.offset)
            logprobs = lists.logprobs
        return CompletionChoice(
            text=(prompt.text if has_prompt else "") + delta.text,
            index=index,
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
        )


def _sampling(request: CompletionRequest) -> SamplingOptions:
    try:
        return SamplingOptions(
            max_words=None,
            max_tokens=request.max_tokens,
            # As with OpenAI, top_p=0 means greedy decoding.
            temperature=request.temperature if request.top_p else 0.0,
            top_k=request.top_k,
            top_p=request.top_p or 1.0,
            seed=None if request.seed is None else request.seed % SEED_LIMIT,
            lines=request.lines,
            stop=request.stop,
        )
    except ValueError as error:
        raise bad_request(str(error).partition("=")[0], str(error)) from None


class _LogprobLists:
    """The parallel lists of `Logprobs`."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self.logprobs = Logprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])

    def add_prompt(self, prompt: Prompt, scores: DocumentScores) -> None:
        offsets = prompt.offsets
        if prompt.has_start:
            self.add(END, None, [], offsets[0])
            offsets = offsets[1:]
        values = (-scores.nll.astype(np.float64)).tolist()
        tops: Sequence[Likely] = scores.top or [[]] * len(values)
        columns = zip(prompt.ids.tolist(), values, tops, offsets, strict=True)
        for token, logprob, top, offset in columns:
            self.add(token, logprob, top, offset)

    def add(self, token: int, logprob: float | None, top: Likely, offset: int) -> None:
        # Ids above the vocabulary are unknown words that the model reads as bytes.
        word = self._words[token if token < len(self._words) else UNKNOWN]
        likely = None
        if logprob is not None:
            logprob += 0.0  # not -0.0
            # Clients compare the token's log-probability with its entry in the list. The two could
            # differ due to rounding, so use the same number.
            likely = {self._words[id]: value for id, value in top} | {word: logprob}
        self.logprobs.tokens.append(word)
        self.logprobs.token_logprobs.append(logprob)
        self.logprobs.top_logprobs.append(likely)
        self.logprobs.text_offset.append(offset)
