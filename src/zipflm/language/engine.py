"""Scoring of ids with a model on a device.

A text longer than the block is split as in `evaluate`: into parts of `block - context` tokens, each
with `context` tokens before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    """A model with its device, precision and block size. Works on ids, not on words."""

    model: LanguageModel
    """In evaluation mode, on the device."""
    scorer: LanguageModel
    """The same model, possibly compiled."""
    device: torch.device
    dtype: torch.dtype
    blocks: Blocks
    batch_tokens: int
    unit: Unit
    memories: Memories | None = None

    @property
    def longest(self) -> int:
        """Number of tokens the model can see at once."""
        is_unlimited = self.model.config.decoder.has_constant_state
        return sys.maxsize if is_unlimited else self.blocks.block

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def nll(self, documents: Sequence[Ids], skip: int = 0) -> list[NDArray[np.float32]]:
        """-log p of the tokens of documents, in nats, each document after its own `</s>`.

        The first `skip` tokens of each document are context and not scored.
        """
        scores = self.start_scoring([Document(ids, skip) for ids in documents])()
        return [each.nll for each in scores]

    def start_scoring(self, documents: Sequence[Document]) -> Callable[[], list[DocumentScores]]:
        """Start scoring; call the result to wait for the scores."""
        return start_documents(
            self.scorer,
            documents,
            blocks=self.blocks,
            batch_tokens=self.batch_tokens,
            device=self.device,
            memories=self.memories,
        )

    def protocol(self, ids: Ids, words: int, skip: int = 0) -> ScoringProtocol:
        """The protocol for scoring these ids, which are `words` words, after `skip` others."""
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
        """Hidden states [N, D] that predict the word after each prefix.

        Prefixes that are too long are cut to their last tokens.
        """
        inputs = [self.inputs(ids) for ids in prefixes]
        lengths = np.array([len(ids) for ids in inputs])
        order = np.argsort(lengths, kind="stable")
        bounds = group(lengths[order], self.batch_tokens)
        parts = [self._last(inputs, order[low:high]) for low, high in pairwise(bounds.tolist())]
        back = torch.from_numpy(np.argsort(order)).to(self.device)
        return torch.cat(parts)[back]

    @torch.inference_mode()
    def mixture_after(self, prefixes: Sequence[Ids]) -> tuple[Tensor, Mixture | None]:
        """`hidden_after`, and the memories of each prefix."""
        if self.memories is None:
            return self.hidden_after(prefixes), None
        rows, last = self.memories.rows(self.model.output.edges[-1]), []
        for prefix in prefixes:
            inputs = torch.from_numpy(self.inputs(prefix)).to(self.device)
            hidden: Tensor = self.model(inputs[None])[0]
            rows.join([self.pairs(prefix, hidden)])
            last.append(hidden[-1])
        return torch.stack(last), rows.lookup(torch.stack(last))

    @torch.inference_mode()
    def pairs(self, text: Ids, hidden_TD: Tensor) -> tuple[Tensor, Ids]:
        """Tokens for a cache, with the hidden states that predicted them.

        `hidden_TD` has the states for the last tokens and the next one. Missing states before them
        are computed as in scoring.
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
        """Inputs that predict the tokens at these places of a document, each with the number of
        inputs that are context, scored in an earlier part."""
        windows = self._windows(len(document), skip)
        part = windows[np.searchsorted(windows.start, places, side="right") - 1]
        stream, contexts = np.append(END, document), part.start - part.first
        inputs = [stream[low : place + 1] for low, place in zip(part.first, places, strict=True)]
        return list(zip(inputs, contexts.tolist(), strict=True))

    def _windows(self, length: int, skip: int) -> Windows:
        begin, start, end = np.array([[0], [skip], [length]])
        return document_windows(begin, start, end, self.blocks)

    def inputs(self, prefix: Ids) -> Ids:
        """Model inputs for a prefix: `</s>` and the prefix, cut to the last tokens."""
        return np.concatenate([[END], prefix]).astype(np.int64)[-self.longest :]

    def _last(self, inputs: Sequence[Ids], rows: NDArray[np.int64]) -> Tensor:
        lengths = torch.tensor([len(inputs[row]) for row in rows])
        words = torch.full((len(rows), int(lengths.max())), PAD)
        for place, row in enumerate(rows):
            words[place, : len(inputs[row])] = torch.from_numpy(inputs[row])
        hidden: Tensor = self.model(words.to(self.device))
        return hidden[torch.arange(len(rows)), lengths - 1]


def diverged() -> ValueError:
    return ValueError(
        "the log-probabilities are not finite: training diverged; use an earlier checkpoint, or "
        "dtype=float32 if this was a lower precision"
    )


# Batches per group: enough to sort texts by length, so that batches are full. The first group is a
# single batch, to start the device early.
_BATCHES_PER_GROUP = 4


class ScoredDocument(NamedTuple):
    text: EncodedText
    nll: NDArray[np.float32]
    """Per token."""
    top: Sequence[Likely] = ()
    """The most likely ids at the start of each word, if requested."""


_Result = Callable[[], list[ScoredDocument]]


def scored_documents(
    engine: Engine, texts: Iterable[EncodedText], prefix: Ids, top: int = 0
) -> Iterator[list[ScoredDocument]]:
    """Score independent texts, each after `</s>` and the prefix, in order."""
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

    return _read_ahead(engine, texts, start, skip)


def scored_lines(
    engine: Engine, texts: Iterable[EncodedText], prefix: Ids, blocks: Blocks
) -> Iterator[list[ScoredDocument]]:
    """Score consecutive lines, split as in `evaluate`."""
    return _read_ahead(engine, texts, _Stream(engine, prefix, blocks).start)


class _Stream:
    """Consecutive lines that are scored in groups as they arrive."""

    def __init__(self, engine: Engine, prefix: Ids, blocks: Blocks) -> None:
        self._engine, self._blocks = engine, blocks
        # The last tokens sent to the device: the context of the next part, and one more.
        self._before = prefix
        # Tokens that were not sent yet, with the line boundaries among them.
        self._ids, self._offsets = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        # Lines that were not returned yet, and the scores of their first tokens.
        self._texts: list[EncodedText] = []
        self._nll = np.zeros(0, dtype=np.float32)
        self._memory = None if engine.memories is None else engine.memories.stream()
        if self._memory is not None and len(prefix):  # add the prefix to the memory
            begin, end = np.array([[0], [len(prefix)]])
            windows = document_windows(begin, begin, end, blocks)
            plan, memory = batched(windows, engine.batch_tokens, sorts=False), self._memory
            start_scoring(
                engine.scorer, prefix, plan, device=engine.device, memory=memory.set_tokens(prefix)
            )

    def start(self, together: list[EncodedText], is_last: bool) -> _Result:
        """Score more lines, up to the last part that later lines could extend."""
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
        memory = None if self._memory is None else self._memory.set_tokens(stream, seen=number)
        plan = batched(windows, self._engine.batch_tokens, sorts=memory is None)
        device = self._engine.device
        scores = start_scoring(self._engine.scorer, stream, plan, device=device, memory=memory)
        self._before = stream[-(blocks.context + 1) :]
        self._ids, self._offsets = ids[end:], np.append(0, offsets[offsets > end] - end)
        return lambda: self._complete(scores().nll[number:])

    def _complete(self, nll: NDArray[np.float32]) -> list[ScoredDocument]:
        """Return the lines that are complete with the scores of more tokens."""
        known = np.concatenate([self._nll, nll])
        ends = np.cumsum([len(text.ids) for text in self._texts], dtype=np.int64)
        number = int(np.searchsorted(ends, len(known), side="right"))
        *parts, self._nll = np.split(known, ends[:number])
        texts, self._texts = self._texts[:number], self._texts[number:]
        return [*map(ScoredDocument, texts, parts)]


def _read_ahead(
    engine: Engine,
    texts: Iterable[EncodedText],
    start: Callable[[list[EncodedText], bool], _Result],
    num_before: int = 0,
) -> Iterator[list[ScoredDocument]]:
    """Yield groups of scored texts, while the device works on the next group.

    Each text has `num_before` tokens before it. If reading fails, earlier texts are still yielded
    before the error is raised.
    """
    reading, room = iter(texts), engine.batch_tokens
    before: _Result = list
    is_last, error = False, None
    while not is_last:
        together, is_last, error = _read(reading, room, num_before)
        result = start(together, is_last)
        if found := before():
            yield found
        before, room = result, _BATCHES_PER_GROUP * engine.batch_tokens
    if found := before():
        yield found
    if error is not None:
        raise error


def _read(
    reading: Iterator[EncodedText], room: int, num_before: int
) -> tuple[list[EncodedText], bool, Exception | None]:
    """Read texts with about `room` tokens. Also return whether these are the last, and the error
    that stopped reading."""
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
