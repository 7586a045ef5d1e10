"""Score independent documents in shared batches, with optional top-k lists, ranks and sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.data.windows import batched, document_windows
from zipflm.evaluation.scoring import start_scoring, to_device
from zipflm.memory.mixing import Mixture
from zipflm.memory.specs import Memories
from zipflm.model.language_model import LanguageModel
from zipflm.model.sampling import most_likely

Ids = NDArray[np.int64]

# Maximum number of log-probabilities in memory at once.
_MAX_ELEMENTS = 1 << 24

Likely = list[tuple[int, float]]
"""Ids with their log-probabilities, most likely first."""


@dataclass(frozen=True)
class Document:
    """Ids to score after a `</s>`, which is not one of them."""

    ids: Ids
    skip: int = 0
    """Number of leading ids that are context only."""
    asked: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Ascending indices of scored ids for which more is computed."""
    top: int = 0
    """Number of most likely ids to list for each index in `asked`."""
    ranks: bool = False
    """Whether to compute the rank of each id in `asked`."""
    sources: bool = False
    """Whether to split the probability of each id in `asked` by model and memory."""


class Source(NamedTuple):
    """The parts of a probability that come from the model and from memories."""

    parts: list[float]
    """The model's part, then one per memory; they add up to the probability."""
    nearest: list[list[int]]
    """Nearest rows of every store."""


class DocumentScores(NamedTuple):
    """Scores of a document; the last three have one item per index in `asked`, if requested."""

    nll: NDArray[np.float32]
    """-log p of every scored id, in nats."""
    top: Sequence[Likely] = ()
    ranks: Sequence[int] = ()
    """1 is the most likely id."""
    sources: Sequence[Source] = ()


def start_documents(
    model: LanguageModel,
    documents: Sequence[Document],
    *,
    blocks: Blocks,
    batch_tokens: int,
    device: torch.device | str,
    memories: Memories | None = None,
) -> Callable[[], list[DocumentScores]]:
    """Start scoring independent documents; call the result to wait for the scores.

    Memories also see the tokens that are context.
    """
    if not documents:
        return list
    stream = np.concatenate([part for each in documents for part in ([END], each.ids)])
    sizes = np.array([len(each.ids) for each in documents])
    begins = np.cumsum(sizes + 1) - sizes
    starts, ends = begins + np.array([each.skip for each in documents]), begins + sizes
    memory = None if memories is None else memories.recall().open(stream, begins[sizes > 0])
    if memory is None:
        plan = batched(document_windows(begins, starts, ends, blocks), batch_tokens)
    else:
        windows = document_windows(begins, begins, ends, blocks)
        # Documents that fit into one window come first, then the parts of longer ones.
        fits = int(np.count_nonzero((sizes > 0) & (sizes <= blocks.block)))
        parts_in_order = batched(windows[fits:], batch_tokens, sorts=False)
        plan = chain(batched(windows[:fits], batch_tokens), parts_in_order)
    extras = None
    if any(each.top or each.ranks or each.sources for each in documents):
        extras = _Extras(documents, begins, len(stream))
    scores = start_scoring(
        model,
        stream,
        plan,
        device=device,
        on_batch=None if extras is None else extras.add_batch,
        memory=memory,
    )

    def result() -> list[DocumentScores]:
        nll = scores().nll
        parts = [nll[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return [DocumentScores(part) for part in parts] if extras is None else extras.results(parts)

    return result


class _Extras:
    """Top-k lists, ranks and sources, computed from the hidden vectors of each batch."""

    def __init__(self, documents: Sequence[Document], begins: Ids, length: int) -> None:
        self._documents = documents
        self._places = [begin + each.asked for each, begin in zip(documents, begins, strict=True)]
        self._wanted_top = np.zeros(length, dtype=np.int64)
        self._wanted_ranks = np.zeros(length, dtype=np.bool_)
        self._wanted_sources = np.zeros(length, dtype=np.bool_)
        for each, places in zip(documents, self._places, strict=True):
            self._wanted_top[places], self._wanted_ranks[places] = each.top, each.ranks
            self._wanted_sources[places] = each.sources
        self._top: list[tuple[Ids, Tensor, Tensor]] = []
        self._ranks: list[tuple[Ids, Tensor]] = []
        self._sources: list[tuple[Ids, Tensor, list[Tensor]]] = []

    def add_batch(
        self,
        model: LanguageModel,
        hidden: Tensor,
        targets: Tensor,
        places: Ids,
        nll: Tensor,
        mixture: Mixture | None,
    ) -> None:
        """Queue work for a batch without waiting for the device. `nll` is without memories."""
        num_words = model.output.edges[-1]
        wanted = self._wanted_top[places]
        if len(rows := np.flatnonzero(wanted)):
            k = min(int(wanted.max()), num_words)
            (at,) = to_device((torch.from_numpy(rows),), hidden.device)
            mix = None if mixture is None else mixture.mix(at)
            self._top.append((places[rows], *most_likely(model.output, hidden[at], k, mix)))
        rows = np.flatnonzero(self._wanted_ranks[places])
        size = max(1, _MAX_ELEMENTS // num_words)
        for low in range(0, len(rows), size):
            some = rows[low : low + size]
            (at,) = to_device((torch.from_numpy(some),), hidden.device)
            log_probs = model.output.log_probs(hidden[at])
            if mixture is not None:
                log_probs = mixture.log_probs(log_probs, at)
            predicted = targets[at].where(targets[at] < num_words, UNKNOWN)
            own = log_probs.gather(1, predicted.unsqueeze(1))
            self._ranks.append((places[some], (log_probs > own).sum(1) + 1))
        rows = np.flatnonzero(self._wanted_sources[places])
        if mixture is not None and len(rows):
            (at,) = to_device((torch.from_numpy(rows),), hidden.device)
            words = targets[at].where(targets[at] < num_words, UNKNOWN)
            self._sources.append((places[rows], *mixture.sources(nll[at], words, at)))

    def results(self, nll: list[NDArray[np.float32]]) -> list[DocumentScores]:
        top: dict[int, Likely] = {}
        for places, values, ids in self._top:
            lists = map(list, map(zip, ids.tolist(), values.tolist()))
            top |= zip(places.tolist(), lists, strict=True)
        ranks: dict[int, int] = {}
        for places, found in self._ranks:
            ranks |= zip(places.tolist(), found.tolist(), strict=True)
        sources: dict[int, Source] = {}
        for places, parts, nearest in self._sources:
            rows = [each.tolist() for each in nearest]
            for at, (place, values) in enumerate(zip(places, parts.tolist(), strict=True)):
                sources[int(place)] = Source(values, [each[at] for each in rows])
        return [
            DocumentScores(
                part,
                [top[place][: each.top] for place in places.tolist()] if each.top else [],
                [ranks[place] for place in places.tolist()] if each.ranks else [],
                [sources[place] for place in places.tolist()] if each.sources and sources else [],
            )
            for each, places, part in zip(self._documents, self._places, nll, strict=True)
        ]
