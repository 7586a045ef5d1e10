"""Answers as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zipflm.language.next_words import LikelyWord
from zipflm.language.scored import ScoredText, ScoredWord, nll_per_word
from zipflm.serving.models import ServedModel
from zipflm.serving.requests import ScoreRequest
from zipflm.serving.scoring import DocumentScores

Alternatives = Sequence[Sequence[LikelyWord]]


def score_answer(
    request: ScoreRequest,
    scores: Sequence[DocumentScores],
    searched: Sequence[Alternatives] | None,
) -> dict[str, Any]:
    """`searched` are the alternatives of words in pieces, per text and place asked about."""
    model = request.model
    blocks = model.engine.blocks
    return {
        "model": model.name,
        "protocol": {
            "run": str(model.lm.run),
            "checkpoint": model.lm.run.checkpoint.name,
            "unit": model.engine.unit,
            "break": blocks.break_mode,
            "block": blocks.block,
            "context": blocks.context,
            "precision": model.engine.precision,
            "prefix": len(request.prefix),
        },
        "texts": [
            _scored_text(request, place, scores[place], None if searched is None else searched[place])
            for place in range(len(request.texts))
        ],
    }


def _scored_text(
    request: ScoreRequest, place: int, scores: DocumentScores, searched: Alternatives | None
) -> dict[str, Any]:
    model, encoded = request.model, request.texts[place]
    skip = len(request.prefix)
    document = request.documents()[place].ids
    scored = ScoredText(
        encoded,
        nll_per_word(encoded, scores.nll),
        model.lm.facts,
        model.engine.protocol(document, len(encoded.starts), skip=skip),
    )
    words = [_word(word) for word in scored.words]
    for number, at in enumerate(request.places[place].tolist()):
        word = words[at]
        if request.top:
            if searched is not None:
                alternatives = [(each.word, each.logprob) for each in searched[number]]
            else:
                names = model.lm.vocabulary.words
                alternatives = [(names[each], logprob) for each, logprob in scores.top[number]]
            word["alternatives"] = [
                {"word": name, "logprob": _rounded(logprob)} for name, logprob in alternatives
            ]
        if request.ranks:
            word["rank"] = _rank(word, scores, number)
    return {
        "logprob": _rounded(scored.logprob),
        "perplexity": _finite(scored.perplexity),
        "surprisal": _rounded(scored.surprisal),
        "words": words,
    }


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


def _rank(word: dict[str, Any], scores: DocumentScores, number: int) -> int | None:
    """Among all words; of a word in pieces, only if it is one of its own alternatives."""
    if scores.ranks:
        return scores.ranks[number]
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
