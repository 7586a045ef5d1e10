"""A model with its device, precision and windows: ids in, numbers out.

A text that fits the block is seen whole. A longer one is cut as `evaluate` cuts: parts of
`block - context` tokens, each after its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks, Unit
from zipflm.data.batches import batch_of
from zipflm.data.vocabulary import END, PAD, UNKNOWN
from zipflm.data.windows import Windows, group
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.scoring import predicted_ids, score_windows, start_scoring
from zipflm.language.text import EncodedText, Ids
from zipflm.model.language_model import LanguageModel

_SMALL = 8
"""Below this part of what fits, a batch leaves the device idle."""


def document_windows(lengths: Sequence[int], blocks: Blocks, skip: int = 0) -> Windows:
    """Windows over texts that stand one behind the other in a stream, `lengths` tokens each.

    The first `skip` tokens of every text are context only.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    begins = np.cumsum(sizes) - sizes
    fits = sizes <= blocks.block
    first, start, end = ([part[fits]] for part in (begins, begins + skip, begins + sizes))
    for begin, size in zip(begins[~fits], sizes[~fits], strict=True):
        starts = np.arange(skip, size, blocks.block - blocks.context)
        first.append(begin + np.maximum(starts - blocks.context, 0))
        start.append(begin + starts)
        end.append(begin + np.append(starts[1:], size))
    return Windows(*map(np.concatenate, (first, start, end)))


def batched(windows: Windows, max_tokens: int) -> Iterator[Windows]:
    """Windows of similar length together, at most `max_tokens` with their padding.

    A batch that is large enough to keep the device busy is not made larger at the price of more
    than a tenth of padding.
    """
    lengths = windows.end - windows.first
    order: NDArray[np.int64] = np.argsort(lengths, kind="stable")
    lengths, row = lengths[order], 0
    while row < len(lengths):
        some = lengths[row : row + max(1, max_tokens // int(lengths[row]))]
        used, padded = np.cumsum(some), some * np.arange(1, len(some) + 1)
        is_dense = (10 * padded <= 11 * used) | (used <= max_tokens // _SMALL)
        number = max(1, int(np.argmin(np.append((padded <= max_tokens) & is_dense, False))))
        rows = order[row : row + number]
        yield Windows(windows.first[rows], windows.start[rows], windows.end[rows])
        row += number


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
