"""Requests for scores, from JSON to documents that a model can score; every field is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zipflm.language.texts import EncodedText, Ids
from zipflm.quoting import quoted
from zipflm.serving.errors import bad_request
from zipflm.serving.fields import Fields, is_integer, require_known_model
from zipflm.serving.models import ServedModel
from zipflm.serving.scoring import Document
from zipflm.serving.tickets import Limits

MOST_TEXTS = 256
"""Of one request."""
MOST_ALTERNATIVES = 100
MOST_LISTED = 100_000
"""Alternatives of one request, over all its words."""
_MOST_SEARCHED = 1_000
"""The same where each is a search among words in pieces."""

SCORE_FIELDS = ("model", "text", "prefix", "top", "ranks", "at")


@dataclass(frozen=True)
class ScoreRequest:
    """Texts, and what is asked about their words."""

    model: ServedModel
    texts: list[EncodedText]
    prefix: Ids
    """What the model reads before each of them."""
    top: int
    ranks: bool
    places: list[Ids]
    """Per text, the words about which alternatives and ranks are asked."""
    warnings: list[str]

    @property
    def search(self) -> int:
        """How many words in pieces are to be looked for in place of each word asked about."""
        return self.top if self.model.engine.unit == "bpe" else 0

    def documents(self) -> list[Document]:
        """What to score."""
        is_words = self.model.engine.unit == "word"
        skip = len(self.prefix)
        return [
            Document(
                np.concatenate([self.prefix, text.ids]),
                skip,
                skip + text.starts[places],
                self.top if is_words else 0,
                self.ranks and is_words,
            )
            for text, places in zip(self.texts, self.places, strict=True)
        ]


def score_request(
    values: Mapping[str, Any], models: Mapping[str, ServedModel], limits: Limits
) -> ScoreRequest:
    """Refusal, naming the field, for what cannot be answered."""
    fields = Fields(values)
    model = chosen_model(fields, models)
    before, given = fields.text("prefix"), _texts(fields)
    require_characters("prefix", before, limits)
    for text in given:
        require_characters("text", text, limits)
    encoded = _read(model, "prefix", before, ends=False)
    prefix = np.zeros(0, dtype=np.int64) if encoded is None else encoded.ids
    texts = [_required(model, "text", text) for text in given]
    for each in texts:
        require_length("text", len(prefix) + len(each.ids), limits)
    top = fields.integer("top", 0, 0, MOST_ALTERNATIVES)
    top = min(top, model.engine.model.output.edges[-1])
    places = _places(fields, texts)
    _require_few(model, top, sum(map(len, places)))
    return ScoreRequest(
        model, texts, prefix, top, fields.flag("ranks"), places, fields.warnings(SCORE_FIELDS)
    )


def chosen_model(fields: Fields, models: Mapping[str, ServedModel]) -> ServedModel:
    """The one that is named, or the first."""
    name = fields.text("model", next(iter(models)))
    require_known_model(name, models)
    return models[name]


def require_characters(param: str, text: str, limits: Limits) -> None:
    """Checked first: counting words takes much longer."""
    if len(text) > limits.max_characters:
        raise bad_request(
            param,
            f"{param}: {len(text)} characters, and a text has {limits.max_characters} at most here "
            "(--max-words)",
            "context_length_exceeded",
        )


def require_length(param: str, number: int, limits: Limits) -> None:
    if number > limits.max_words:
        raise bad_request(
            param,
            f"{param}: {number} words, and a text has {limits.max_words} at most here "
            "(--max-words)",
            "context_length_exceeded",
        )


def _texts(fields: Fields) -> list[str]:
    texts = fields.get("text")
    if texts is None:
        raise bad_request("text", "text: missing; give a text or a list of texts", "missing")
    texts = texts if isinstance(texts, list) else [texts]
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise bad_request("text", f"text: {len(texts)} texts; give 1 to {MOST_TEXTS}")
    for text in texts:
        if not isinstance(text, str):
            raise bad_request("text", f"text: {quoted(text)} is no text", "invalid_type")
    return texts


def _required(model: ServedModel, param: str, text: str) -> EncodedText:
    encoded = _read(model, param, text, ends=True)
    if encoded is None:
        raise bad_request(param, f"{param}: empty; give at least one word", "empty")
    return encoded


def _read(model: ServedModel, param: str, text: str, ends: bool) -> EncodedText | None:
    """None for no text at all."""
    if not text:
        return None
    try:
        return model.reader.text(text, ends=ends)
    except ValueError as error:
        raise bad_request(param, f"{param}: {error}") from None


def _places(fields: Fields, texts: list[EncodedText]) -> list[Ids]:
    at = fields.get("at")
    if at is None:
        return [np.arange(len(text.words)) for text in texts]
    if not isinstance(at, list) or not all(is_integer(place) for place in at):
        raise bad_request("at", f"at={quoted(at)}: give a list of places of words, from 0 on")
    shortest = min(len(text.words) for text in texts)
    for place in at:
        if not 0 <= place < shortest:
            raise bad_request(
                "at", f"at: {quoted(place)}: the text has the words 0 to {shortest - 1}"
            )
    return [np.array(sorted(set(at)), dtype=np.int64)] * len(texts)


def _require_few(model: ServedModel, top: int, number: int) -> None:
    most = MOST_LISTED if model.engine.unit == "word" else _MOST_SEARCHED
    if top * number > most:
        raise bad_request(
            "top",
            f"top={top} for {number} words is more than the {most} alternatives of one answer; "
            "name the words with `at`",
        )
