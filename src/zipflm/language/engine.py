"""A model with its device, precision and windows: ids in, numbers out.

A text that fits the block is seen whole. A longer one is cut as `evaluate` cuts: parts of
`block - context` tokens, each after its context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks, Unit
from zipflm.data.batches import batch_of
from zipflm.data.token_file import TokenArray
from zipflm.data.vocabulary import END, PAD, UNKNOWN
from zipflm.data.windows import Windows, batched, cut, document_windows, group, with_context
from zipflm.evaluation.documents import Document, DocumentScores, Likely, start_documents
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.scoring import predicted_ids, predicting, start_scoring
from zipflm.language.text import EncodedText, Ids
from zipflm.memory.mixing import Mixture
from zipflm.memory.specs import Memories
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
    memories: Memories | None = None

    @property
    def longest(self) -> int:
        """Tokens after which a growing text loses its beginning."""
        is_endless = self.model.config.decoder.has_constant_state
        return sys.maxsize if is_endless else self.blocks.block

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def nll(self, documents: Sequence[Ids], skip: int = 0) -> list[NDArray[np.float32]]:
        """-log p of the tokens of documents, in nats, each document after a `</s>` of its own.

        The first `skip` tokens of each are context, not scored.
        """
        scores = self.start_scoring([Document(ids, skip) for ids in documents])()
        return [each.nll for each in scores]

    def start_scoring(self, documents: Sequence[Document]) -> Callable[[], list[DocumentScores]]:
        """The scores of documents, once they are called for; until then a GPU works by itself."""
        return start_documents(
            self.scorer,
            documents,
            blocks=self.blocks,
            batch_tokens=self.batch_tokens,
            device=self.device,
            memories=self.memories,
        )

    def protocol(self, ids: Ids, words: int, skip: int = 0) -> ScoringProtocol:
        """How ids, which make up so many words, are scored behind `skip` others."""
        positions = skip + len(ids)
        if positions > self.blocks.block:
            windows = self._windows(positions, skip)
            positions = int((windows.end - windows.first).sum())
        targets = predicted_ids(ids, self.model.config.num_predicted)
        return ScoringProtocol(
            unit=self.unit,
            blocks=self.blocks,
            tokens=len(ids),
            words=words,
            unk=int(np.count_nonzero(targets == UNKNOWN)),
            eos=int(np.count_nonzero(targets == END)),
            positions=positions,
            dtype=self.dtype_name,
            memory=() if self.memories is None else self.memories.names,
        )

    @torch.inference_mode()
    def hidden_after(self, prefixes: Sequence[Ids]) -> Tensor:
        """The vectors [N, D] from which the word after each prefix is predicted.

        Of a prefix that is too long, the last tokens are seen.
        """
        inputs = [self.inputs(ids) for ids in prefixes]
        lengths = np.array([len(ids) for ids in inputs])
        order = np.argsort(lengths, kind="stable")
        bounds = group(lengths[order], self.batch_tokens)
        parts = [self._last(inputs, order[low:high]) for low, high in _pairs(bounds)]
        back = torch.from_numpy(np.argsort(order)).to(self.device)
        return torch.cat(parts)[back]

    @torch.inference_mode()
    def mixture_after(self, prefixes: Sequence[Ids]) -> tuple[Tensor, Mixture | None]:
        """The same with the memories of each prefix."""
        if self.memories is None:
            return self.hidden_after(prefixes), None
        rows, last = self.memories.rows(self.model.output.edges[-1]), []
        for prefix in prefixes:
            inputs = torch.from_numpy(self.inputs(prefix)).to(self.device)
            hidden: Tensor = self.model(inputs[None])[0]
            rows.join([self.pairs(prefix, hidden)])
            last.append(hidden[-1])
        return torch.stack(last), rows.look(torch.stack(last))

    @torch.inference_mode()
    def pairs(self, text: Ids, hidden_TD: Tensor) -> tuple[Tensor, Ids]:
        """The tokens of a text that a cache remembers, with the vectors that predicted them.

        `hidden_TD` are those of its last tokens and, at the end, of the next one. If these are not
        all, the text before them is read as it is where texts are scored.
        """
        assert self.memories is not None
        number = len(text) + 1 - len(hidden_TD)
        if number == 0 or len(hidden_TD) > self.memories.reach:
            return hidden_TD[:-1], text[number:]
        stream, one = np.append(END, text[:number]), np.ones(1, dtype=np.int64)
        windows = document_windows(one, one, one + number, self.blocks)
        plan = batched(windows, self.batch_tokens, sorts=False)
        parts = [predicting(self.model, batch_of(stream, w), self.device)[0] for w in plan]
        return torch.cat([*parts, hidden_TD[:-1]]), text

    def inputs_before(
        self, document: Ids, places: NDArray[np.int64], skip: int = 0
    ) -> list[tuple[Ids, int]]:
        """What the model reads to predict the tokens at these places of a document, and how many of
        it are context, which an earlier part scored."""
        windows = self._windows(len(document), skip)
        part = windows[np.searchsorted(windows.start, places, side="right") - 1]
        stream, contexts = np.append(END, document), part.start - part.first
        inputs = [stream[low : place + 1] for low, place in zip(part.first, places, strict=True)]
        return list(zip(inputs, contexts.tolist(), strict=True))

    def _windows(self, length: int, skip: int) -> Windows:
        """Those of one document."""
        begin, start, end = np.array([[0], [skip], [length]])
        return document_windows(begin, start, end, self.blocks)

    def inputs(self, prefix: Ids) -> Ids:
        """What the model reads to predict what follows: `</s>`, then the prefix, or its end."""
        return np.concatenate([[END], prefix]).astype(np.int64)[-self.longest :]

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
    nll: NDArray[np.float32]
    """Of its tokens."""
    top: Sequence[Likely] = ()
    """The most likely ids at each of its words, where they were asked for."""


_Result = Callable[[], list[ScoredDocument]]


def scored_documents(
    engine: Engine, texts: Iterable[EncodedText], prefix: Ids, top: int = 0
) -> Iterator[list[ScoredDocument]]:
    """Texts that know nothing of each other, each behind a `</s>` and the prefix, in order."""
    skip = len(prefix)

    def document(text: EncodedText) -> Document:
        ids = np.concatenate([prefix, text.ids])
        return Document(ids, skip, skip + text.starts, top) if top else Document(ids, skip)

    def start(together: list[EncodedText], is_last: bool) -> _Result:
        scores = engine.start_scoring([document(text) for text in together])
        return lambda: [
            ScoredDocument(text, each.nll, each.top)
            for text, each in zip(together, scores(), strict=True)
        ]

    return _reading_ahead(engine, texts, start, skip)


def scored_lines(
    engine: Engine, texts: Iterable[EncodedText], prefix: Ids, blocks: Blocks
) -> Iterator[list[ScoredDocument]]:
    """Lines that follow each other, cut as `evaluate` cuts a text; each is given out once the part
    that it ends in is scored."""
    return _reading_ahead(engine, texts, _Stream(engine, prefix, blocks).start)


class _Stream:
    """Lines that follow each other, as far as they are known."""

    def __init__(self, engine: Engine, prefix: Ids, blocks: Blocks) -> None:
        self._engine, self._blocks = engine, blocks
        self._before = prefix
        """The last tokens that went to the device: the context of the next part, and one more."""
        self._ids, self._offsets = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        """Those behind them, and where lines begin and end among them."""
        self._texts: list[EncodedText] = []
        """Lines that have not been given out."""
        self._nll = np.zeros(0, dtype=np.float32)
        """Of their tokens, as far as it is known."""
        self._recall = None if engine.memories is None else engine.memories.recall()
        if self._recall is not None and len(prefix):  # remembered as if it were scored
            begin, end = np.array([[0], [len(prefix)]])
            windows = document_windows(begin, begin, end, blocks)
            plan, memory = batched(windows, engine.batch_tokens, sorts=False), self._recall
            start_scoring(
                engine.scorer, prefix, plan, device=engine.device, memory=memory.open(prefix)
            )

    def start(self, together: list[EncodedText], is_last: bool) -> _Result:
        """Some lines more; unless they are the last, others may join the part in which they end."""
        self._texts += together
        ids = np.concatenate([self._ids, *(text.ids for text in together)])
        lengths = np.cumsum([len(text.ids) for text in together], dtype=np.int64)
        offsets = np.append(self._offsets, self._offsets[-1] + lengths)
        blocks, number = self._blocks, len(self._before)
        bounds = cut(TokenArray(ids, offsets), blocks.break_mode, blocks.block - blocks.context)
        bounds = bounds if is_last else bounds[:-1]
        end = int(bounds[-1])
        stream = np.concatenate([self._before, ids[:end]])
        windows = with_context(number + bounds[:-1], number + bounds[1:], blocks)
        memory = None if self._recall is None else self._recall.open(stream, seen=number)
        plan = batched(windows, self._engine.batch_tokens, sorts=memory is None)
        device = self._engine.device
        scores = start_scoring(self._engine.scorer, stream, plan, device=device, memory=memory)
        self._before = stream[-(blocks.context + 1) :]
        self._ids, self._offsets = ids[end:], np.append(0, offsets[offsets > end] - end)
        return lambda: self._complete(scores().nll[number:])

    def _complete(self, nll: NDArray[np.float32]) -> list[ScoredDocument]:
        """The lines that are known with so many tokens more."""
        known = np.concatenate([self._nll, nll])
        ends = np.cumsum([len(text.ids) for text in self._texts], dtype=np.int64)
        number = int(np.searchsorted(ends, len(known), side="right"))
        *parts, self._nll = np.split(known, ends[:number])
        texts, self._texts = self._texts[:number], self._texts[number:]
        return [*map(ScoredDocument, texts, parts)]


def _reading_ahead(
    engine: Engine,
    texts: Iterable[EncodedText],
    start: Callable[[list[EncodedText], bool], _Result],
    num_before: int = 0,
) -> Iterator[list[ScoredDocument]]:
    """Every list is what was scored together; the device has the next one when it is given out.

    A text has `num_before` tokens before it. If one cannot be read, those before it are given out
    first.
    """
    reading, room = iter(texts), engine.batch_tokens
    before: _Result = list
    is_last, error = False, None
    while not is_last:
        together, is_last, error = _read(reading, room, num_before)
        result = start(together, is_last)
        if found := before():
            yield found
        before, room = result, _BATCHES * engine.batch_tokens
    if found := before():
        yield found
    if error is not None:
        raise error


def _read(
    reading: Iterator[EncodedText], room: int, num_before: int
) -> tuple[list[EncodedText], bool, Exception | None]:
    """As many texts as fill the room, or are left, and whether these are all there are; what
    prevented more from being read."""
    together: list[EncodedText] = []
    try:
        while room > 0:
            text = next(reading, None)
            if text is None:
                return together, True, None
            together.append(text)
            room -= num_before + len(text.ids)
    except Exception as error:
        return together, True, error
    return together, False, None
