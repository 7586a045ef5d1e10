"""`/score`: per-word log-probabilities, with optional alternatives, ranks and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zipflm.evaluation.documents import Document, Source
from zipflm.language.score_table import rounded
from zipflm.language.text import EncodedText, Ids, nll_per_word, scored_words
from zipflm.messages import quoted
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import encode, require_length
from zipflm.serving.schemas import (
    Alternative,
    Neighbor,
    ProbabilitySource,
    ScoreRequest,
    ScoreResponse,
    TextScore,
    WordScore,
    bad_request,
)
from zipflm.serving.worker import Limits, ScoreTask
from zipflm.units import bits, perplexity

MAX_LOGPROBS = 100_000
"""Maximum number of alternatives in one response, and of log-probabilities in `completions`."""
_MAX_SEARCHED = 1_000
"""The maximum for subword models is lower, because each position needs a search."""


class Scoring:
    """A request to `/score`. Also builds the response from the scores."""

    def __init__(self, request: ScoreRequest, model: ServedModel, limits: Limits) -> None:
        self._request, self.model = request, model
        self._is_word_model = model.engine.unit == "word"
        before = encode(model, "prefix", request.prefix, limits) if request.prefix else None
        self._prefix = np.zeros(0, dtype=np.int64) if before is None else before.ids
        self.texts = [encode(model, "text", text, limits, ends=True) for text in request.text]
        for text in self.texts:
            require_length("text", len(self._prefix) + len(text.ids), limits)
        self._top = min(request.top, model.engine.model.output.edges[-1])
        self._positions = _positions(request.at, self.texts)
        num_words = sum(map(len, self._positions))
        maximum = MAX_LOGPROBS if self._is_word_model else _MAX_SEARCHED
        if self._top * num_words > maximum:
            raise bad_request(
                "top",
                f"top={self._top}: too many for {num_words} words; the maximum is {maximum} in "
                "total; select fewer words with `at`",
            )

    @property
    def search(self) -> int:
        """Number of alternatives to search for at each position; 0 for word models, whose scores
        include them."""
        return 0 if self._is_word_model else self._top

    def documents(self) -> list[Document]:
        skip = len(self._prefix)
        return [
            Document(
                np.concatenate([self._prefix, text.ids]),
                skip,
                skip + text.starts[positions],
                self._top if self._is_word_model else 0,
                self._request.ranks and self._is_word_model,
                self._request.sources and self._is_word_model,
            )
            for text, positions in zip(self.texts, self._positions, strict=True)
        ]

    def response(self, scored: Mapping[int, ScoreTask]) -> ScoreResponse:
        model = self.model
        blocks = model.engine.blocks
        protocol = {
            "run": model.name,
            "checkpoint": model.lm.run.checkpoint.name,
            "unit": model.engine.unit,
            "break": blocks.break_mode,
            "block": blocks.block,
            "context": blocks.context,
            "dtype": model.engine.dtype_name,
            "prefix": len(self._prefix),
        }
        if memory := model.entry.zipflm.get("memory"):
            protocol["memory"] = memory
        texts = [self._text_score(index, scored[index]) for index in range(len(self.texts))]
        return ScoreResponse(model=model.name, protocol=protocol, texts=texts)

    def _text_score(self, index: int, scored: ScoreTask) -> TextScore:
        encoded = self.texts[index]
        nll = nll_per_word(encoded, scored.scores.nll)
        words = [
            WordScore(
                word=word.word,
                logprob=rounded(word.logprob),
                surprisal=rounded(word.surprisal),
                band=word.band,
                count=word.count,
                is_unknown=word.is_unknown,
                is_end=word.is_end,
                span=None if word.is_end else word.span,
            )
            for word in scored_words(encoded, nll, self.model.lm.statistics)
        ]
        for nth, position in enumerate(self._positions[index].tolist()):
            if self._top:
                words[position].alternatives = self._alternatives(scored, nth)
            if self._request.ranks:
                words[position].rank = _rank(words[position], scored, nth)
            if scored.scores.sources:
                words[position].sources = self._sources(scored.scores.sources[nth])
        total = float(nll.sum())
        return TextScore(
            logprob=rounded(-total),
            perplexity=perplexity(total / len(nll)),
            surprisal=rounded(bits(total)),
            words=words,
        )

    def _sources(self, source: Source) -> list[ProbabilitySource]:
        memories, names = self.model.engine.memories, self.model.lm.vocabulary.words
        assert memories is not None
        return [
            ProbabilitySource(
                name=name,  # type: ignore[arg-type]
                probability=part,
                neighbors=[
                    Neighbor(context=" ".join(names[id] for id in ids), word=names[word])
                    for ids, word in contexts
                ],
            )
            for name, part, contexts in memories.sources(*source)
        ]

    def _alternatives(self, scored: ScoreTask, nth: int) -> list[Alternative]:
        names = self.model.lm.vocabulary.words
        likely: Sequence[tuple[str, float]] = (
            scored.searched[nth]
            if scored.searched
            else [(names[token], logprob) for token, logprob in scored.scores.top[nth]]
        )
        return [Alternative(word=word, logprob=rounded(logprob)) for word, logprob in likely]


def _positions(at: Sequence[int] | None, texts: Sequence[EncodedText]) -> list[Ids]:
    """Return the indices of the requested words for each text."""
    if at is None:
        return [np.arange(len(text.words)) for text in texts]
    shortest = min(len(text.words) for text in texts)
    for index in at:
        if not 0 <= index < shortest:
            raise bad_request("at", f"at={quoted(index)}: give word indices 0 to {shortest - 1}")
    return [np.array(sorted(set(at)), dtype=np.int64)] * len(texts)


def _rank(word: WordScore, scored: ScoreTask, nth: int) -> int | None:
    """Return the rank among all words; for subword models, the rank among the alternatives, or
    None if the word is not one of them."""
    if scored.scores.ranks:
        return scored.scores.ranks[nth]
    names = [alternative.word for alternative in word.alternatives]
    return names.index(word.word) + 1 if word.word in names else None
