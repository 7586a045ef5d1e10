"""`/score`: texts in, log-probabilities per word out, with alternatives and ranks on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zipflm.evaluation.documents import Document, Source
from zipflm.language.score_table import rounded
from zipflm.language.text import EncodedText, Ids, nll_per_word, scored_words
from zipflm.messages import quoted
from zipflm.serving.models import ServedModel
from zipflm.serving.prompts import encode, require_length
from zipflm.serving.queue import Limits, Scored
from zipflm.serving.schemas import (
    Alternative,
    Neighbour,
    ProbabilitySource,
    ScoreAnswer,
    ScoreRequest,
    TextScore,
    WordScore,
    bad_request,
)
from zipflm.units import bits, perplexity

MAX_LISTED = 100_000
"""Alternatives of one answer, over all its words."""
_MAX_SEARCHED = 1_000
"""The same where each is a search among words in pieces."""


class Scoring:
    """A request for scores: its texts as ids, and the answer from what the model says of them."""

    def __init__(self, asked: ScoreRequest, model: ServedModel, limits: Limits) -> None:
        """Refusal, naming the field, for a request that cannot be answered."""
        self._asked, self.model = asked, model
        self._is_words = model.engine.unit == "word"
        before = encode(model, "prefix", asked.prefix, limits) if asked.prefix else None
        self._prefix = np.zeros(0, dtype=np.int64) if before is None else before.ids
        self.texts = [encode(model, "text", text, limits, ends=True) for text in asked.text]
        for text in self.texts:
            require_length("text", len(self._prefix) + len(text.ids), limits)
        self._top = min(asked.top, model.engine.model.output.edges[-1])
        self._places = _places(asked.at, self.texts)
        number = sum(map(len, self._places))
        most = MAX_LISTED if self._is_words else _MAX_SEARCHED
        if self._top * number > most:
            raise bad_request(
                "top",
                f"top={self._top} for {number} words is more than the {most} alternatives of one "
                "answer; name the words with `at`",
            )

    @property
    def search(self) -> int:
        """How many words in pieces to search for at each place."""
        return 0 if self._is_words else self._top

    def documents(self) -> list[Document]:
        """The texts for the model to score."""
        skip = len(self._prefix)
        return [
            Document(
                np.concatenate([self._prefix, text.ids]),
                skip,
                skip + text.starts[places],
                self._top if self._is_words else 0,
                self._asked.ranks and self._is_words,
                self._asked.sources and self._is_words,
            )
            for text, places in zip(self.texts, self._places, strict=True)
        ]

    def answer(self, scored: Mapping[int, Scored]) -> ScoreAnswer:
        """The answer, from the scores of every text by its place."""
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
        texts = [self._text(place, scored[place]) for place in range(len(self.texts))]
        return ScoreAnswer(model=model.name, protocol=protocol, texts=texts)

    def _text(self, place: int, scored: Scored) -> TextScore:
        encoded = self.texts[place]
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
            for word in scored_words(encoded, nll, self.model.lm.facts)
        ]
        for number, at in enumerate(self._places[place].tolist()):
            if self._top:
                words[at].alternatives = self._alternatives(scored, number)
            if self._asked.ranks:
                words[at].rank = _rank(words[at], scored, number)
            if scored.scores.sources:
                words[at].sources = self._sources(scored.scores.sources[number])
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
                name=name,  # type: ignore[arg-type]  # one of three
                probability=part,
                neighbours=[
                    Neighbour(context=" ".join(names[id] for id in ids), word=names[word])
                    for ids, word in contexts
                ],
            )
            for name, part, contexts in memories.sources(*source)
        ]

    def _alternatives(self, scored: Scored, number: int) -> list[Alternative]:
        names = self.model.lm.vocabulary.words
        likely: Sequence[tuple[str, float]] = (
            scored.searched[number]
            if scored.searched
            else [(names[token], logprob) for token, logprob in scored.scores.top[number]]
        )
        return [Alternative(word=word, logprob=rounded(logprob)) for word, logprob in likely]


def _places(at: Sequence[int] | None, texts: Sequence[EncodedText]) -> list[Ids]:
    """Per text, the words whose alternatives and ranks are wanted."""
    if at is None:
        return [np.arange(len(text.words)) for text in texts]
    shortest = min(len(text.words) for text in texts)
    for place in at:
        if not 0 <= place < shortest:
            raise bad_request("at", f"at={quoted(place)}: the text has words 0 to {shortest - 1}")
    return [np.array(sorted(set(at)), dtype=np.int64)] * len(texts)


def _rank(word: WordScore, scored: Scored, number: int) -> int | None:
    """The rank among all words; for a word in pieces, only if it is one of its alternatives."""
    if scored.scores.ranks:
        return scored.scores.ranks[number]
    names = [each.word for each in word.alternatives]
    return names.index(word.word) + 1 if word.word in names else None
