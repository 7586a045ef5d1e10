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

# Maximum number of log-probabilities in memory at once when ranks are computed.
_MAX_ELEMENTS = 1 << 24

Likely = list[tuple[int, float]]
"""Ids with their log-probabilities, most likely first."""


@dataclass(frozen=True)
class Document:
    """Ids to score. A `</s>` is prepended as context."""

    ids: Ids
    skip: int = 0
    """Number of leading ids that are context only."""
    asked: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Ascending indices into `ids` for which `top`, `ranks` and `sources` are computed."""
    top: int = 0
    """Number of most likely ids to list for each index in `asked`."""
    ranks: bool = False
    """True to compute the rank of the id at each index in `asked`."""
    sources: bool = False
    """True to split the probability of the id at each index in `asked` by model and memory."""


class Source(NamedTuple):
    """The contributions of the model and of each memory to a probability."""

    parts: list[float]
    """The contribution of the model, then one per memory. Their sum is the probability."""
    nearest: list[list[int]]
    """Rows of the nearest neighbors, one list per store."""


class DocumentScores(NamedTuple):
    """Scores of a document. Fields other than `nll` have one item per index in `asked`; they are
    empty if not requested."""

    nll: NDArray[np.float32]
    """-log p of every scored id, in nats."""
    top: Sequence[Likely] = ()
    ranks: Sequence[int] = ()
    """1 is the most likely id."""
    sources: Sequence[Source] = ()
    """Empty without memories."""


def start_documents(
    model: LanguageModel,
    documents: Sequence[Document],
    *,
    blocks: Blocks,
    batch_tokens: int,
    device: torch.device | str,
    memories: Memories | None = None,
) -> Callable[[], list[DocumentScores]]:
    """Start scoring independent documents. Call the result to wait for the scores.

    With memories, skipped ids are scored as well, so that caches store them.
    """
    if not documents:
        return list
    stream = np.concatenate([part for document in documents for part in ([END], document.ids)])
    sizes = np.array([len(document.ids) for document in documents])
    begins = np.cumsum(sizes + 1) - sizes
    starts = begins + np.array([document.skip for document in documents])
    ends = begins + sizes
    memory = None if memories is None else memories.stream().set_tokens(stream, begins[sizes > 0])
    if memory is None:
        plan = batched(document_windows(begins, starts, ends, blocks), batch_tokens)
    else:
        windows = document_windows(begins, begins, ends, blocks)
        # Documents that fit into one window are first, followed by the parts of longer ones.
        fits = int(np.count_nonzero((sizes > 0) & (sizes <= blocks.block)))
        parts_in_order = batched(windows[fits:], batch_tokens, sort_by_length=False)
        plan = chain(batched(windows[:fits], batch_tokens), parts_in_order)
    extras = None
    if any(document.top or document.ranks or document.sources for document in documents):
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
    """Computes top-k lists, ranks and sources from the hidden vectors of each batch."""

    def __init__(self, documents: Sequence[Document], begins: Ids, length: int) -> None:
        self._documents = documents
        self._positions = [
            begin + document.asked for document, begin in zip(documents, begins, strict=True)
        ]
        self._wanted_top = np.zeros(length, dtype=np.int64)
        self._wanted_ranks = np.zeros(length, dtype=np.bool_)
        self._wanted_sources = np.zeros(length, dtype=np.bool_)
        for document, positions in zip(documents, self._positions, strict=True):
            self._wanted_top[positions] = document.top
            self._wanted_ranks[positions] = document.ranks
            self._wanted_sources[positions] = document.sources
        self._top: list[tuple[Ids, Tensor, Tensor]] = []
        self._ranks: list[tuple[Ids, Tensor]] = []
        self._sources: list[tuple[Ids, Tensor, list[Tensor]]] = []

    def add_batch(
        self,
        model: LanguageModel,
        hidden: Tensor,
        targets: Tensor,
        positions: Ids,
        nll: Tensor,
        mixture: Mixture | None,
    ) -> None:
        """Compute what the documents request at these positions, without waiting for the device.

        `nll` is that of the model without memories.
        """
        num_words = model.output.edges[-1]
        wanted = self._wanted_top[positions]
        if len(rows := np.flatnonzero(wanted)):
            k = min(int(wanted.max()), num_words)
            (at,) = to_device((torch.from_numpy(rows),), hidden.device)
            mix = None if mixture is None else mixture.for_rows(at)
            self._top.append((positions[rows], *most_likely(model.output, hidden[at], k, mix)))
        rows = np.flatnonzero(self._wanted_ranks[positions])
        size = max(1, _MAX_ELEMENTS // num_words)
        for low in range(0, len(rows), size):
            chunk = rows[low : low + size]
            (at,) = to_device((torch.from_numpy(chunk),), hidden.device)
            log_probs = model.output.log_probs(hidden[at])
            if mixture is not None:
                log_probs = mixture.log_probs(log_probs, at)
            predicted = targets[at].where(targets[at] < num_words, UNKNOWN)
            predicted_log_probs = log_probs.gather(1, predicted.unsqueeze(1))
            ranks = (log_probs > predicted_log_probs).sum(1) + 1
            self._ranks.append((positions[chunk], ranks))
        rows = np.flatnonzero(self._wanted_sources[positions])
        if mixture is not None and len(rows):
            (at,) = to_device((torch.from_numpy(rows),), hidden.device)
            words = targets[at].where(targets[at] < num_words, UNKNOWN)
            self._sources.append((positions[rows], *mixture.sources(nll[at], words, at)))

    def results(self, nll: list[NDArray[np.float32]]) -> list[DocumentScores]:
        top: dict[int, Likely] = {}
        for positions, values, ids in self._top:
            lists = map(list, map(zip, ids.tolist(), values.tolist()))
            top |= zip(positions.tolist(), lists, strict=True)
        ranks: dict[int, int] = {}
        for positions, values in self._ranks:
            ranks |= zip(positions.tolist(), values.tolist(), strict=True)
        sources: dict[int, Source] = {}
        for positions, parts, nearest in self._sources:
            stores = [rows.tolist() for rows in nearest]
            for at, (position, values) in enumerate(zip(positions, parts.tolist(), strict=True)):
                sources[int(position)] = Source(values, [rows[at] for rows in stores])
        return [
            DocumentScores(
                part,
                [top[p][: document.top] for p in positions.tolist()] if document.top else [],
                [ranks[p] for p in positions.tolist()] if document.ranks else [],
                [sources[p] for p in positions.tolist()] if document.sources and sources else [],
            )
            for document, positions, part in zip(self._documents, self._positions, nll, strict=True)
        ]
