"""Texts scored group by group: the next group is read while a GPU works on the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zipflm.language.engine import Engine
from zipflm.language.texts import EncodedText, Ids

# Batches that make up a group: enough to sort many texts by length, so that batches are full. The
# first is one batch, so that the device soon has something to do.
_BATCHES = 4


class ScoredDocument(NamedTuple):
    """A text as the model saw it."""

    text: EncodedText
    ids: Ids
    """Behind the prefix."""
    nll: NDArray[np.float32]
    """Of the text's own tokens."""


class _Group(NamedTuple):
    texts: list[EncodedText]
    documents: list[Ids]
    nll: Callable[[], list[NDArray[np.float32]]]


def scored_documents(
    engine: Engine, texts: Iterable[EncodedText], prefix: Ids
) -> Iterator[list[ScoredDocument]]:
    """Texts that know nothing of each other, each behind a `</s>` and the prefix, in order.

    Every list is what was scored together; the device has the next one when it is given out. If a
    text cannot be read, those before it are given out first.
    """
    reading, room = iter(texts), engine.batch_tokens
    before: _Group | None = None
    error: Exception | None = None
    while error is None:
        together, error = _read(reading, room, len(prefix))
        group = _started(engine, together, prefix) if together else None
        if before is not None:
            yield _scored(before)
        before = group
        if group is None:
            break
        room = _BATCHES * engine.batch_tokens
    if before is not None:
        yield _scored(before)
    if error is not None:
        raise error


def _read(
    reading: Iterator[EncodedText], room: int, num_before: int
) -> tuple[list[EncodedText], Exception | None]:
    """As many texts as fill the room, or are left, and what prevented more from being read."""
    together: list[EncodedText] = []
    try:
        while room > 0 and (text := next(reading, None)) is not None:
            together.append(text)
            room -= num_before + len(text.ids)
    except Exception as error:
        return together, error
    return together, None


def _started(engine: Engine, texts: list[EncodedText], prefix: Ids) -> _Group:
    documents = [np.concatenate([prefix, text.ids]) for text in texts]
    return _Group(texts, documents, engine.start_nll(documents, len(prefix)))


def _scored(group: _Group) -> list[ScoredDocument]:
    return [*map(ScoredDocument, group.texts, group.documents, group.nll())]
