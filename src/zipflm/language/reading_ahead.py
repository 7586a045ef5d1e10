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

    Every list is what was scored together; the device has the next one when it is given out.
    """
    before: _Group | None = None
    for group in _groups(engine, texts, prefix):
        if before is not None:
            yield _scored(before)
        before = group
    if before is not None:
        yield _scored(before)


def _groups(engine: Engine, texts: Iterable[EncodedText], prefix: Ids) -> Iterator[_Group]:
    """Started, not waited for."""
    together: list[EncodedText] = []
    tokens, room = 0, engine.batch_tokens
    for text in texts:
        together.append(text)
        tokens += len(prefix) + len(text.ids)
        if tokens >= room:
            yield _started(engine, together, prefix)
            together, tokens, room = [], 0, _BATCHES * engine.batch_tokens
    if together:
        yield _started(engine, together, prefix)


def _started(engine: Engine, texts: list[EncodedText], prefix: Ids) -> _Group:
    documents = [np.concatenate([prefix, text.ids]) for text in texts]
    return _Group(texts, documents, engine.start_nll(documents, len(prefix)))


def _scored(group: _Group) -> list[ScoredDocument]:
    return [*map(ScoredDocument, group.texts, group.documents, group.nll())]
