"""`/v1/completions`: prompts in, continuations out, whole or in parts.

A token is an id of the vocabulary: a word, the end of a line, or a piece of a word. The end of a
line ends the text, as in `zipflm generate`; `lines` asks for more.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

import numpy as np

from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.evaluation.documents import Document, DocumentScores, Likely
from zipflm.language.decoding import SEEDS, Delta, GrowingText, SamplingOptions
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import Prompt, read_prompt, require_length
from zipflm.serving.queue import Limits
from zipflm.serving.schemas import (
    MAX_TEXTS,
    CompletionAnswer,
    CompletionChoice,
    CompletionRequest,
    Logprobs,
    Usage,
    bad_request,
)
from zipflm.serving.scores import MAX_LISTED


class Completion:
    """A request for completions: its prompts as ids, and the answer as far as it is written."""

    def __init__(self, asked: CompletionRequest, model: ServedModel, limits: Limits) -> None:
        """Refusal, naming the field, for a request that cannot be answered."""
        self._asked, self.model = asked, model
        self._options = _sampling(asked)
        require_length("max_tokens", asked.max_tokens, limits)
        self._prompts = [read_prompt(model, prompt, limits) for prompt in asked.prompt]
        for prompt in self._prompts:
            require_length("prompt", len(prompt.tokens) + asked.max_tokens, limits)
        number = len(self._prompts) * asked.n
        if number > MAX_TEXTS:
            raise bad_request("n", f"n={asked.n}: {number} texts; ask for {MAX_TEXTS} at most")
        self._require_few_logprobs(number * asked.max_tokens)
        reason = None if asked.max_tokens else "length"
        self._choices = [Delta(finish_reason=reason) for _ in range(number)]
        self._scores: dict[int, DocumentScores] = {}
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())

    def _require_few_logprobs(self, tokens: int) -> None:
        """An answer is put together in memory, and every choice repeats its prompt's."""
        if self._asked.logprobs is None:
            return
        if self._asked.echo:
            tokens += self._asked.n * sum(len(prompt.tokens) for prompt in self._prompts)
        if tokens * max(self._asked.logprobs, 1) > MAX_LISTED:
            raise bad_request(
                "logprobs",
                f"logprobs={self._asked.logprobs} for up to {tokens} tokens of all texts is more "
                f"than the {MAX_LISTED} of one answer; ask for fewer, or for fewer texts at once",
            )

    # --- Work for the model. ---

    def documents(self) -> list[Document]:
        """The prompts, where their own log-probabilities are wanted."""
        if not self._asked.echo or self._asked.logprobs is None:
            return []
        return [
            Document(prompt.ids, asked=np.arange(len(prompt.ids)), top=self._num_likely)
            for prompt in self._prompts
        ]

    def rows(self) -> list[GrowingText]:
        """One for each choice, in order; none if there is nothing to write."""
        asked, reader = self._asked, self.model.reader
        if not asked.max_tokens:
            return []
        return [
            GrowingText(
                reader,
                prompt.ids,
                prompt.spelling(reader),
                self._options,
                number=number,
                top=self._num_likely,
            )
            for prompt in self._prompts
            for number in range(asked.n)
        ]

    @property
    def _num_likely(self) -> int:
        """How many of the most likely tokens are listed next to every token."""
        return min(self._asked.logprobs or 0, len(self.model.reader.vocabulary))

    # --- Results of the model. ---

    def add_scores(self, place: int, scores: DocumentScores) -> None:
        """Scores of a prompt."""
        self._scores[place] = scores

    def add(self, index: int, delta: Delta) -> None:
        """More of a choice."""
        choice = self._choices[index]
        choice.text += delta.text
        choice.tokens += delta.tokens
        choice.finish_reason = delta.finish_reason

    @property
    def is_complete(self) -> bool:
        return all(choice.finish_reason for choice in self._choices)

    # --- Answers. ---

    def whole(self) -> CompletionAnswer:
        choices = [
            self._choice(index, choice, begins=True) for index, choice in enumerate(self._choices)
        ]
        return self._answer(choices, self._usage())

    def first_chunks(self) -> Iterator[CompletionAnswer]:
        """The prompts, if they are to be repeated, and choices that are complete already."""
        for index, choice in enumerate(self._choices):
            if self._asked.echo or choice.finish_reason:
                delta = Delta(finish_reason=choice.finish_reason)
                yield self._answer([self._choice(index, delta, begins=True)])

    def chunks(self, index: int, delta: Delta) -> Iterator[CompletionAnswer]:
        """A part of a stream, if there is anything to show."""
        has_tokens = delta.tokens and self._asked.logprobs is not None
        if delta.text or delta.finish_reason or has_tokens:
            yield self._answer([self._choice(index, delta, begins=False)])

    def last_chunks(self) -> Iterator[CompletionAnswer]:
        if self._asked.stream_options.include_usage:
            yield self._answer([], self._usage())

    def _answer(
        self, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> CompletionAnswer:
        answer = CompletionAnswer(
            id=self._id,
            object="text_completion",
            created=self._created,
            model=self.model.name,
            system_fingerprint=self.model.fingerprint,
            choices=choices,
        )
        if usage or self._asked.stream_options.include_usage:
            answer.usage = usage
        return answer

    def _usage(self) -> Usage:
        prompts = sum(len(prompt.tokens) for prompt in self._prompts)
        written = sum(len(choice.tokens) for choice in self._choices)
        return Usage(
            prompt_tokens=prompts, completion_tokens=written, total_tokens=prompts + written
        )

    def _choice(self, index: int, delta: Delta, begins: bool) -> CompletionChoice:
        """With the prompt, if that is to be repeated and the choice `begins` here."""
        asked, place = self._asked, index // self._asked.n
        prompt = self._prompts[place]
        has_prompt = asked.echo and begins
        logprobs = None
        if asked.logprobs is not None:
            lists = _LogprobLists(self.model.lm.vocabulary.words)
            if has_prompt:
                lists.add_prompt(prompt, self._scores[place])
            offset = len(prompt.text) if asked.echo else 0
            for each in delta.tokens:
                lists.add(each.token, each.logprob, each.top, offset + each.offset)
            logprobs = lists.logprobs
        return CompletionChoice(
            text=(prompt.text if has_prompt else "") + delta.text,
            index=index,
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
        )


def _sampling(asked: CompletionRequest) -> SamplingOptions:
    """As the library has it; Refusal where the library refuses."""
    try:
        return SamplingOptions(
            max_words=None,
            max_tokens=asked.max_tokens,
            # As for OpenAI: with a nucleus of nothing, the most likely token alone.
            temperature=asked.temperature if asked.top_p else 0.0,
            top_k=asked.top_k,
            top_p=asked.top_p or 1.0,
            seed=None if asked.seed is None else asked.seed % SEEDS,
            lines=asked.lines,
            stop=asked.stop,
        )
    except ValueError as error:
        raise bad_request(str(error).partition("=")[0], str(error)) from None


class _LogprobLists:
    """The four lists of a choice's log-probabilities; tokens are spelt as in the vocabulary."""

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
        # Of a word that is read by its bytes there is no spelling in the vocabulary.
        word = self._words[token if token < len(self._words) else UNKNOWN]
        likely = None
        if logprob is not None:
            logprob += 0.0  # not -0.0
            # The token's own number replaces that of the list, which comes from another product:
            # a client that compares the two must find them equal.
            likely = {self._words[each]: value for each, value in top} | {word: logprob}
        self.logprobs.tokens.append(word)
        self.logprobs.token_logprobs.append(logprob)
        self.logprobs.top_logprobs.append(likely)
        self.logprobs.text_offset.append(offset)
