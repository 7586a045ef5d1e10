"""Texts of many requests scored in one pass, with what else was asked about some of their words.

The numbers are those of `Engine.nll`: the same windows through the same layers. Other than there,
a document may end in any word, and the most likely words and ranks come from the same pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.batches import batch_of
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.data.windows import Windows
from zipflm.language.decoding import Likely
from zipflm.language.engine import Engine, batched, diverged, document_windows
from zipflm.language.text import Ids
from zipflm.model.sampling import most_likely

_MOST_NUMBERS = 1 << 24
"""Log-probabilities of all words in memory at once."""


@dataclass(frozen=True)
class Document:
    """Ids that follow a `</s>`, which is not among them."""

    ids: Ids
    skip: int = 0
    """So many of them are context, not scored."""
    asked: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Places among the ids, rising, about which more is asked."""
    top: int = 0
    """How many of the most likely ids are wanted there."""
    ranks: bool = False
    """Whether the rank of the id that stands there is."""

    @property
    def num_scored(self) -> int:
        return len(self.ids) - self.skip


@dataclass(frozen=True)
class DocumentScores:
    """What the model says of a document."""

    nll: NDArray[np.float32]
    """-log p of every id that is scored, in nats."""
    top: list[Likely]
    """Per place that was asked about; empty if none were wanted."""
    ranks: list[int]
    """The same; 1 is the most likely id."""


@torch.inference_mode()
def score_documents(engine: Engine, documents: Sequence[Document]) -> list[DocumentScores]:
    """Scores in the order of the documents; `engine.batch_tokens` go through the model at once."""
    stream, begins = _stream(documents)
    nll = np.zeros(len(stream), dtype=np.float32)
    top = _asked(documents, begins, [each.top for each in documents])
    ranks = _asked(documents, begins, [int(each.ranks) for each in documents])
    likely: dict[int, Likely] = {}
    ranked: dict[int, int] = {}
    for windows in _batches(engine, documents, begins):
        batch = batch_of(stream, windows)
        reach = windows.first[:, None] + np.arange(batch.words.shape[1])
        places = reach[batch.scored.numpy()]
        chosen = batch.scored.flatten().nonzero().squeeze(1)
        targets = batch.targets.flatten()[chosen].to(engine.device)
        hidden = engine.scorer(batch.words.to(engine.device)).flatten(0, 1)
        hidden = hidden[chosen.to(engine.device)]
        nll[places] = engine.model.output.nll(hidden, targets).float().cpu().numpy()
        if top.any():
            likely |= _likely(engine, hidden, places, top)
        if ranks.any():
            ranked |= _ranks(engine, hidden, targets, places, ranks)
    if not np.isfinite(nll).all():
        raise diverged()
    return [
        DocumentScores(
            nll[begin + each.skip : begin + len(each.ids)],
            [likely[begin + place][: each.top] for place in each.asked.tolist()]
            if each.top
            else [],
            [ranked[begin + place] for place in each.asked.tolist()] if each.ranks else [],
        )
        for each, begin in zip(documents, begins, strict=True)
    ]


def _stream(documents: Sequence[Document]) -> tuple[Ids, list[int]]:
    """All documents behind each other with a `</s>` before each, and where their ids begin."""
    parts: list[Ids] = []
    begins, length = [], 0
    for document in documents:
        parts += [np.array([END]), document.ids]
        begins.append(length + 1)
        length += 1 + len(document.ids)
    return np.concatenate(parts).astype(np.int64), begins


def _asked(
    documents: Sequence[Document], begins: Sequence[int], wanted: Sequence[int]
) -> NDArray[np.int64]:
    """Per place of the stream, how much is wanted there."""
    last = begins[-1] + len(documents[-1].ids)
    numbers = np.zeros(last, dtype=np.int64)
    for document, begin, number in zip(documents, begins, wanted, strict=True):
        numbers[begin + document.asked] = number
    return numbers


def _batches(
    engine: Engine, documents: Sequence[Document], begins: Sequence[int]
) -> Iterator[Windows]:
    whole: list[tuple[int, int, int]] = []
    parts: list[NDArray[np.int64]] = []
    for document, begin in zip(documents, begins, strict=True):
        length = len(document.ids)
        if document.num_scored and length <= engine.blocks.block:
            whole.append((begin, begin + document.skip, begin + length))
        elif document.num_scored:
            cut = document_windows([length], engine.blocks, document.skip)
            parts.append(begin + np.stack([cut.first, cut.start, cut.end]))
    if whole:
        parts.append(np.array(whole, dtype=np.int64).T)
    if parts:
        yield from batched(Windows(*np.concatenate(parts, axis=1)), engine.batch_tokens)


def _likely(
    engine: Engine, hidden: Tensor, places: NDArray[np.int64], wanted: NDArray[np.int64]
) -> dict[int, Likely]:
    """The most likely ids at the places where some are wanted."""
    rows = np.flatnonzero(wanted[places])
    if not len(rows):
        return {}
    k = min(int(wanted[places].max()), engine.model.output.edges[-1])
    chosen = hidden[torch.from_numpy(rows).to(hidden.device)]
    values, ids = most_likely(engine.model.output, chosen, k)
    lists = zip(places[rows].tolist(), ids.tolist(), values.tolist(), strict=True)
    return {place: list(zip(of_ids, of_values, strict=True)) for place, of_ids, of_values in lists}


def _ranks(
    engine: Engine,
    hidden: Tensor,
    targets: Tensor,
    places: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> dict[int, int]:
    """1 and the number of ids that are more likely than the one that is there."""
    rows = np.flatnonzero(wanted[places])
    size = max(1, _MOST_NUMBERS // engine.model.output.edges[-1])
    found: dict[int, int] = {}
    for some in np.split(rows, range(size, len(rows), size)):
        at = torch.from_numpy(some).to(hidden.device)
        log_probs = engine.model.output.log_probs(hidden[at])
        predicted = targets[at].where(targets[at] < log_probs.shape[1], UNKNOWN)
        own = log_probs.gather(1, predicted.unsqueeze(1))
        more_likely = (log_probs > own).sum(1) + 1
        found |= dict(zip(places[some].tolist(), more_likely.tolist(), strict=True))
    return found
