"""A model and how it is run: on which device, in what precision, in windows of what size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks, Unit
from zipflm.data.batches import batch_of
from zipflm.data.grouping import group
from zipflm.data.parts import Windows
from zipflm.data.vocabulary import END, PAD, UNKNOWN
from zipflm.evaluation.scores import ScoringProtocol
from zipflm.evaluation.scoring import predicted_ids, score_windows, start_scoring
from zipflm.language.texts import Ids
from zipflm.language.windows import batched, document_windows
from zipflm.model.language_model import LanguageModel


@dataclass(frozen=True)
class Engine:
    """Ids in, numbers out; knows nothing of words."""

    model: LanguageModel
    """In evaluation mode, on the device."""
    scorer: LanguageModel
    """The same, compiled if that was asked for."""
    device: torch.device
    dtype: torch.dtype
    """Of weights and products."""
    blocks: Blocks
    """What a model sees at once, and how much context a part of a longer text has before it."""
    batch_tokens: int
    unit: Unit

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def nll(self, documents: Sequence[Ids], skip: int = 0) -> list[NDArray[np.float32]]:
        """-log p of the tokens of documents, in nats, each document after a `</s>` of its own.

        Every document ends in `</s>`. The first `skip` tokens of each are context, not scored.
        """
        return self.start_nll(documents, skip)()

    def start_nll(
        self, documents: Sequence[Ids], skip: int = 0
    ) -> Callable[[], list[NDArray[np.float32]]]:
        """The same, once it is called for; until then a GPU works by itself."""
        assert all(len(ids) > skip and ids[-1] == END for ids in documents)
        if not documents:
            return list
        # Before each document stands the end of another, or nothing, which is read as an end.
        stream = np.concatenate(documents)
        windows = document_windows([len(ids) for ids in documents], self.blocks, skip)
        plan = batched(windows, self.batch_tokens)
        scores = start_scoring(self.scorer, stream, plan, device=self.device)
        ends = np.cumsum([len(ids) for ids in documents])

        def result() -> list[NDArray[np.float32]]:
            nll, _, _ = scores()
            return [part[skip:] for part in np.split(nll, ends[:-1])]

        return result

    def nll_of(self, stream: Ids, windows: Windows) -> NDArray[np.float32]:
        """-log p of the tokens of a stream that the windows score, NaN elsewhere."""
        plan = batched(windows, self.batch_tokens)
        nll, _, _ = score_windows(self.scorer, stream, plan, device=self.device)
        return nll

    def protocol(self, ids: Ids, words: int, skip: int = 0) -> ScoringProtocol:
        """How `nll` scores a document of these ids, which make up so many words."""
        length = positions = len(ids)
        ids = predicted_ids(ids, self.model.config.num_predicted)
        if length > self.blocks.block:
            windows = document_windows([length], self.blocks, skip)
            positions = int((windows.end - windows.first).sum())
        return ScoringProtocol(
            unit=self.unit,
            blocks=self.blocks,
            tokens=length - skip,
            words=words,
            unk=int(np.count_nonzero(ids[skip:] == UNKNOWN)),
            eos=int(np.count_nonzero(ids[skip:] == END)),
            positions=positions,
            precision=self.precision,
        )

    @torch.inference_mode()
    def hidden_after(self, prefixes: Sequence[Ids]) -> Tensor:
        """The vectors [N, D] from which the word after each prefix is predicted.

        Of a prefix longer than the block, the last tokens are seen.
        """
        inputs = [self.inputs(ids) for ids in prefixes]
        lengths = np.array([len(ids) for ids in inputs])
        order = np.argsort(lengths, kind="stable")
        bounds = group(lengths[order], self.batch_tokens)
        parts = [self._last(inputs, order[low:high]) for low, high in _pairs(bounds)]
        back = torch.from_numpy(np.argsort(order)).to(self.device)
        return torch.cat(parts)[back]

    @torch.inference_mode()
    def hidden_before(self, document: Ids, places: NDArray[np.int64], skip: int = 0) -> Tensor:
        """The vectors [N, D] from which `nll` predicts the tokens at these places of a document."""
        order, hidden = [], []
        plan = document_windows([len(document)], self.blocks, skip)
        for windows in batched(plan, self.batch_tokens):
            batch = batch_of(document, windows)
            reach = windows.first[:, None] + np.arange(batch.words.shape[1])
            order.append(reach[batch.scored.numpy()])
            of_window: Tensor = self.model(batch.words.to(self.device))
            hidden.append(of_window[batch.scored.to(self.device)])
        # Every place from `skip` on is in there once.
        rows = np.argsort(np.concatenate(order))[places - skip]
        return torch.cat(hidden)[torch.from_numpy(rows).to(self.device)]

    def inputs_before(self, document: Ids, places: NDArray[np.int64], skip: int = 0) -> list[Ids]:
        """What the model reads for that, place by place."""
        windows = document_windows([len(document)], self.blocks, skip)
        first = windows.first[np.searchsorted(windows.start, places, side="right") - 1]
        stream = np.append(END, document)
        return [stream[low : place + 1] for low, place in zip(first, places, strict=True)]

    def inputs(self, prefix: Ids) -> Ids:
        """What the model reads to predict what follows: `</s>`, then the prefix, or its end."""
        return np.concatenate([[END], prefix]).astype(np.int64)[-self.blocks.block :]

    def _last(self, inputs: Sequence[Ids], rows: NDArray[np.int64]) -> Tensor:
        lengths = torch.tensor([len(inputs[row]) for row in rows])
        words = torch.full((len(rows), int(lengths.max())), PAD)
        for place, row in enumerate(rows):
            words[place, : len(inputs[row])] = torch.from_numpy(inputs[row])
        hidden: Tensor = self.model(words.to(self.device))
        return hidden[torch.arange(len(rows)), lengths - 1]


def _pairs(bounds: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    yield from zip(bounds.tolist(), bounds[1:].tolist(), strict=False)


def diverged() -> ValueError:
    """What to say of a model whose numbers are none."""
    return ValueError(
        "the model gives no finite log-probabilities: its training diverged; take an earlier "
        "checkpoint, or dtype=float32 if this was another one"
    )
