"""Scores of the hypotheses of utterances, of which the beginning they share is computed once.

The words that all hypotheses of an utterance begin with pass the decoder once; each continues from
there with words of its own, padded on the right, where causality hides it. Utterances whose
hypotheses share too little for that to pay are scored like any other texts, many at a time, and so
are hypotheses that are longer than what the model sees at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.vocabulary import END, PAD
from zipflm.language.engine import Engine, diverged
from zipflm.language.texts import Ids
from zipflm.model.language_model import LanguageModel

# Of the positions of an utterance. Below, it is cheaper to score it together with others.
_WORTH_SHARING = 0.25

_NO_TARGET = -1


@dataclass(frozen=True)
class _Utterance:
    """Hypotheses that begin alike and fit into a block."""

    places: list[int]
    """Among all hypotheses."""
    inputs: list[Ids]
    """What the model reads: `</s>` and the ids of the words."""
    shared: int
    """So many of the inputs are the same for all."""

    @property
    def longest(self) -> int:
        return max(map(len, self.inputs))

    @property
    def is_worth_sharing(self) -> bool:
        saved = (len(self.inputs) - 1) * self.shared
        return 0 < saved >= _WORTH_SHARING * sum(map(len, self.inputs))


class PrefixSharingScorer:
    """log p of hypotheses, as `rescore` asks for it."""

    def __init__(self, engine: Engine, ids_of: Callable[[str], Ids]) -> None:
        """`ids_of` gives the ids of a text, that of `</s>` at its end."""
        self._engine, self._ids_of = engine, ids_of

    def log_probs_of(self, utterances: Sequence[Sequence[str]]) -> list[list[float]]:
        """log p of every text, its end included, in nats, per utterance in the order given."""
        documents = [self._ids_of(text) for texts in utterances for text in texts]
        found = np.zeros(len(documents))
        alone = set(range(len(documents)))
        by_shared = defaultdict(list)
        first = 0
        for texts in utterances:
            utterance = self._utterance(documents, range(first, first + len(texts)))
            first += len(texts)
            if utterance.is_worth_sharing:
                by_shared[utterance.shared].append(utterance)
                alone -= set(utterance.places)
        for shared in sorted(by_shared):
            for together in self._batches(by_shared[shared]):
                places = [place for utterance in together for place in utterance.places]
                found[places] = self._shared(documents, together)
        rest = sorted(alone)
        # An empty list of documents is asked for where all share.
        for place, nll in zip(rest, self._engine.nll([documents[i] for i in rest]), strict=True):
            found[place] = -nll.sum(dtype=np.float64)
        values = iter(found.tolist())
        return [[next(values) for _ in texts] for texts in utterances]

    def _utterance(self, documents: Sequence[Ids], places: Sequence[int]) -> _Utterance:
        """Those of an utterance's hypotheses that fit into a block."""
        fitting = [place for place in places if len(documents[place]) <= self._engine.blocks.block]
        inputs = [np.append(END, documents[place][:-1]) for place in fitting]
        return _Utterance(fitting, inputs, _common_length(inputs))

    def _batches(self, utterances: list[_Utterance]) -> Iterator[list[_Utterance]]:
        """Utterances whose beginnings pass the decoder together."""
        batch: list[_Utterance] = []
        for utterance in sorted(utterances, key=lambda one: one.longest):
            # The longest is the last: all get the memory that it needs.
            if batch and (len(batch) + 1) * utterance.longest > self._engine.batch_tokens:
                yield batch
                batch = []
            batch.append(utterance)
        if batch:
            yield batch

    @torch.inference_mode()
    def _shared(self, documents: Sequence[Ids], batch: list[_Utterance]) -> NDArray[np.float64]:
        """log p of the hypotheses of utterances that share equally many inputs each."""
        model, device = self._engine.model, self._engine.device
        shared, longest = batch[0].shared, max(utterance.longest for utterance in batch)
        inputs_UP = torch.from_numpy(np.stack([one.inputs[0][:shared] for one in batch]))
        inputs_UP = inputs_UP.to(device)
        cache = model.new_cache(len(batch), longest)
        hidden_UPD = model(inputs_UP, cache)
        # What the shared words themselves cost; the last of them predicts what comes next.
        nll_U = _sums(model, hidden_UPD[:, :-1], inputs_UP[:, 1:])
        owners = np.repeat(np.arange(len(batch)), [len(one.inputs) for one in batch])
        places = [place for utterance in batch for place in utterance.places]
        rests = [documents[place][shared - 1 :] for place in places]
        order = np.argsort([len(rest) for rest in rests], kind="stable")
        nll_N = torch.zeros(len(places), dtype=torch.float64, device=device)
        rows_at_once = max(self._engine.batch_tokens // longest, 1)
        for start in range(0, len(order), rows_at_once):
            rows = order[start : start + rows_at_once]
            owners_N = torch.from_numpy(owners[rows]).to(device)
            targets_NW = _padded([rests[row] for row in rows], _NO_TARGET).to(device)
            hidden_NWD = hidden_UPD[owners_N, -1:]
            if targets_NW.shape[1] > 1:
                words_NW = _padded([rests[row][:-1] for row in rows], PAD).to(device)
                later_NWD = model(words_NW, cache.select(owners_N))
                hidden_NWD = torch.cat([hidden_NWD, later_NWD], dim=1)
            at = torch.from_numpy(rows).to(device)
            nll_N[at] = nll_U[owners_N] + _sums(model, hidden_NWD, targets_NW)
        log_probs: NDArray[np.float64] = -nll_N.cpu().numpy()
        if not np.isfinite(log_probs).all():
            raise diverged()
        return log_probs


def _sums(model: LanguageModel, hidden_NWD: Tensor, targets_NW: Tensor) -> Tensor:
    """-log p of the targets, [N], of those that are no padding, in float64."""
    scored_NW = targets_NW != _NO_TARGET
    nll = model.output.nll(hidden_NWD[scored_NW], targets_NW[scored_NW])
    sums_N = torch.zeros(len(targets_NW), dtype=torch.float64, device=nll.device)
    rows_NW = torch.arange(len(targets_NW), device=nll.device)[:, None].expand_as(targets_NW)
    return sums_N.index_add(0, rows_NW[scored_NW], nll.double())


def _padded(rows: Sequence[Ids], padding: int) -> Tensor:
    """Ids of different length as one table, padded on the right."""
    table = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return torch.from_numpy(table)


def _common_length(rows: Sequence[Ids]) -> int:
    """Ids that all rows begin with."""
    if not rows:
        return 0
    length = min(map(len, rows))
    table = np.stack([row[:length] for row in rows])
    differs = (table != table[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else length
