"""Answers as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zipflm.language.scored import ScoredWord, nll_per_word, scored_words
from zipflm.serving.models import ServedModel
from zipflm.serving.requests import ScoreRequest
from zipflm.serving.tickets import Scored
from zipflm.units import bits, perplexity


def score_answer(request: ScoreRequest, scored: Sequence[Scored]) -> dict[str, Any]:
    """The answer to `/score`, from what was told of its texts in their order."""
    model = request.model
    blocks = model.engine.blocks
    return {
        "model": model.name,
        "protocol": {
            "run": model.name,
            "checkpoint": model.lm.run.checkpoint.name,
            "unit": model.engine.unit,
            "break": blocks.break_mode,
            "block": blocks.block,
            "context": blocks.context,
            "precision": model.engine.precision,
            "prefix": len(request.prefix),
        },
        "texts": [_text(request, each) for each in scored],
    }


def _text(request: ScoreRequest, scored: Scored) -> dict[str, Any]:
    model, encoded = request.model, request.texts[scored.place]
    nll = nll_per_word(encoded, scored.scores.nll)
    words = [_word(word) for word in scored_words(encoded, nll, model.lm.facts)]
    for number, at in enumerate(request.places[scored.place].tolist()):
        if request.top:
            alternatives = _alternatives(model, scored, number)
            words[at]["alternatives"] = [
                {"word": name, "logprob": _rounded(logprob)} for name, logprob in alternatives
            ]
        if request.ranks:
            words[at]["rank"] = _rank(words[at], scored, number)
    total = float(nll.sum())
    return {
        "logprob": _rounded(-total),
        "perplexity": _finite(perplexity(total / len(nll))),
        "surprisal": _rounded(bits(total)),
        "words": words,
    }


def _alternatives(model: ServedModel, scored: Scored, number: int) -> Sequence[tuple[str, float]]:
    if scored.searched:
        return scored.searched[number]
    names = model.lm.vocabulary.words
    return [(names[token], logprob) for token, logprob in scored.scores.top[number]]


def _word(word: ScoredWord) -> dict[str, Any]:
    return {
        "word": word.word,
        "logprob": _rounded(word.logprob),
        "surprisal": _rounded(word.surprisal),
        "band": word.band,
        "count": word.count,
        "is_unknown": word.is_unknown,
        "is_end": word.is_end,
        "span": None if word.is_end else list(word.span),
    }


def _rank(word: dict[str, Any], scored: Scored, number: int) -> int | None:
    """Among all words; of a word in pieces, only if it is one of its own alternatives."""
    if scored.scores.ranks:
        return scored.scores.ranks[number]
    names = [each["word"] for each in word.get("alternatives", ())]
    return names.index(word["word"]) + 1 if word["word"] in names else None


def _rounded(number: float) -> float:
    """As `zipflm score` writes it; plus 0, because certainty is not -0."""
    return round(number, 6) + 0.0


def _finite(number: float) -> float | None:
    """None, which is no number, for a perplexity beyond all numbers."""
    return number if number < float("inf") else None


def models_answer(models: Sequence[ServedModel]) -> dict[str, Any]:
    return {"object": "list", "data": [model.facts for model in models]}
