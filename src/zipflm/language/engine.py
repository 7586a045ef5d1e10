"""Scoring of ids with a model on a device.

A text longer than the block is split into parts of `block - context` tokens, and the model also
sees up to `context` tokens before each part.
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
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.data.windows import Windows, batched, cut, document_windows, with_context
from zipflm.evaluation.documents import Document, DocumentScores, Likely, start_documents
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.scoring import compute_hidden, predicted_ids, start_scoring
from zipflm.language.text import EncodedText, Ids
from zipflm.memory.mixing import Mixture
from zipflm.memory.specs import Memories
from zipflm.model.language_model import LanguageModel


@dataclass(frozen=True)
class Engine:
    """A model with its device, precision and block size. All methods take ids, not words."""

    model: LanguageModel
    """In evaluation mode, on the device."""
    device: torch.device
    dtype: torch.dtype
    blocks: Blocks
    batch_tokens: int
    """Maximum number of tokens per batch. A longer line or prefix gets its own batch."""
    unit: Unit
    memories: Memories | None = None

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a prefix that the model sees: the block of a Transformer,
        unlimited for other decoders."""
        is_unlimited = self.model.config.decoder.has_constant_state
        return sys.maxsize if is_unlimited else self.blocks.block

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def nll(self, documents: Sequence[Ids], skip: int = 0) -> list[NDArray[np.float32]]:
        """Return -log p in nats of the tokens of each document. A document starts after `</s>`.

        The first `skip` tokens of each document are context and not scored.
        """
        scores = self.start_scoring([Document(ids, skip) for ids in documents])()
        return [document.nll for document in scores]

    def start_scoring(self, documents: Sequence[Document]) -> Callable[[], list[DocumentScores]]:
        """Start scoring. Call the returned function to wait for the scores of each document."""
        return start_documents(
            self.model,
            documents,
            blocks=self.blocks,
            batch_tokens=self.batch_tokens,
            device=self.device,
            memories=self.memories,
        )

    def protocol(self, ids: Ids, words: int, skip: int = 0) -> ScoringProtocol:
        """Return the settings and counts to quote with a perplexity of these ids, which form
        `words` words and follow `skip` ids of context."""
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
    def hidden_after(self, prefixes: Sequence[Ids]) -> tuple[Tensor, Mixture | None]:
        """Return the hidden states [N, D] that predict the token after each prefix, and the
        predictions of the memories to mix with (None without memories).

        Prefixes longer than `longest` are cut to their last tokens.
        """
        inputs = [torch.from_numpy(self.inputs(ids)) for ids in prefixes]
        batch_size = max(self.batch_tokens // max(map(len, inputs)), 1)
        texts: list[Tensor] = []
        for first in range(0, len(inputs), batch_size):
            texts += self.model.read(inputs[first : first + batch_size])[0]
        hidden_ND = torch.stack([hidden_TD[-1] for hidden_TD in texts])
        if self.memories is None:
            return hidden_ND, None
        rows = self.memories.rows(self.model.output.edges[-1])
        rows.join([self.pairs(*pair) for pair in zip(prefixes, texts, strict=True)])
        return hidden_ND, rows.lookup(hidden_ND)

    @torch.inference_mode()
    def pairs(self, text: Ids, hidden_TD: Tensor) -> tuple[Tensor, Ids]:
        """Return hidden states and the tokens they predicted, for cache memories.

        `hidden_TD` has the states that predict the last tokens of `text` and the next token. If the
        caches can hold earlier tokens, the states that predict those are computed as in scoring.
        """
        assert self.memories is not None
        missing = len(text) + 1 - len(hidden_TD)
        if missing == 0 or len(hidden_TD) > self.memories.largest_window:
            return hidden_TD[:-1], text[missing:]
        stream, one = np.append(END, text[:missing]), np.ones(1, dtype=np.int64)
        windows = document_windows(one, one, one + missing, self.blocks)
        plan = batched(windows, self.batch_tokens, sort_by_length=False)
        parts = [compute_hidden(self.model, batch_of(stream, w), self.device)[0] for w in plan]
        return torch.cat([*parts, hidden_TD[:-1]]), text

    def inputs_before(
        self, document: Ids, positions: NDArray[np.int64], skip: int = 0
    ) -> list[tuple[Ids, int]]:
        """Return the inputs that predict the token at each of these positions of a document, and
        how many of the inputs are context from an earlier part."""
        windows = self._windows(len(document), skip)
        part = windows[np.searchsorted(windows.start, positions, side="right") - 1]
        stream, contexts = np.append(END, document), part.start - part.first
        ranges = zip(part.first, positions, strict=True)
        inputs = [stream[first : position + 1] for first, position in ranges]
        return list(zip(inputs, contexts.tolist(), strict=True))

    def _windows(self, length: int, skip: int) -> Windows:
        begin, start, end = np.array([[0], [skip], [length]])
        return document_windows(begin, start, end, self.blocks)

    def inputs(self, prefix: Ids) -> Ids:
        """Return the model inputs for a prefix: `</s>` and the prefix, cut to the last `longest`
        tokens."""
        return np.concatenate([[END], prefix]).astype(np.int64)[-self.longest :]


def non_finite_error() -> ValueError:
    return ValueError(
        "log-probabilities are NaN or infinite; use an earlier checkpoint, or dtype=float32 if you "
        "loaded the model in lower precision"
    )


# Batches per group: enough to sort texts by length and fill the batches. The first group is a
# single batch, so that the device starts early.
_BATCHES_PER_GROUP = 4


class ScoredDocument(NamedTuple):
    text: EncodedText
    nll: NDArray[np.float32]
    """One value per token, in nats."""
    top: Sequence[Likely] = ()
    """The most likely ids at the start of each word, if requested."""


_Result = Callable[[], list[ScoredDocument]]


def scored_documents(
    engine: Engine, texts: Iterable[EncodedText], prefix: Ids, top: int = 0
) -> Iterator[list[ScoredDocument]]:
    """Score independent texts, each after `</s>` and the prefix. Yield them in order, in groups.

    With `top`, also find the `top` most likely ids at the start of each word.
    """
    skip = len(prefix)

    def document(text: EncodedText) -> Document:
        ids = np.concatenate([prefix, text.ids])
        return Document(ids, skip, skip + text.starts, top) if top else Document(ids, skip)

    def start(group: list[EncodedText], is_last: bool) -> _Result:
        wait = engine.start_scoring([document(text) for text in group])
        return lambda: [
            ScoredDocument(text, scores.nll, scores.top)
            for text, scores in zip(group, wait(), strict=True)
        ]

    return _read_ahead(engine, texts, start, skip)


def scored_lines(
    engine: Engine, texts: Iterable[EncodedText], prefix: Ids, blocks: Blocks
) -> Iterator[list[ScoredDocument]]:
    """Score consecutive lines as one text, split into blocks as in `evaluate`. Yield the lines in
    groups."""
    return _read_ahead(engine, texts, _Stream(engine, prefix, blocks).start)


class _Stream:
    """Consecutive lines that are scored in groups as they arrive."""

    def __init__(self, engine: Engine, prefix: Ids, blocks: Blocks) -> None:
        self._engine, self._blocks = engine, blocks
        # The last tokens sent to the device: the context of the next part, and one token before it.
        self._before = prefix
        # Tokens that have not been sent yet, with the line boundaries among them.
        self._ids, self._offsets = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
        # Lines that have not been returned yet, and the scores of their first tokens.
        self._texts: list[EncodedText] = []
        self._nll = np.zeros(0, dtype=np.float32)
        self._memory = None if engine.memories is None else engine.memories.stream()
        if self._memory is not None and len(prefix):  # add the prefix to the memory
            start, end = np.array([[0], [len(prefix)]])
            windows = document_windows(start, start, end, blocks)
            plan, memory = batched(windows, engine.batch_tokens, sort_by_length=False), self._memory
            start_scoring(
                engine.model, prefix, plan, device=engine.device, memory=memory.set_tokens(prefix)
            )

    def start(self, group: list[EncodedText], is_last: bool) -> _Result:
        """Start scoring more lines. Unless `is_last`, keep the last part for the next call,
        because later lines could extend it."""
        self._texts += group
        ids = np.concatenate([self._ids, *(text.ids for text in group)])
        lengths = np.cumsum([len(text.ids) for text in group], dtype=np.int64)
        offsets = np.append(self._offsets, self._offsets[-1] + lengths)
        blocks, num_before = self._blocks, len(self._before)
        bounds = cut(TokenArray(ids, offsets), blocks.break_mode, blocks.block - blocks.context)
        bounds = bounds if is_last else bounds[:-1]
        end = int(bounds[-1])
        stream = np.concatenate([self._before, ids[:end]])
        windows = with_context(num_before + bounds[:-1], num_before + bounds[1:], blocks)
        memory = None if self._memory is None else self._memory.set_tokens(stream, seen=num_before)
        plan = batched(windows, self._engine.batch_tokens, sort_by_length=memory is None)
        device = self._engine.device
        scores = start_scoring(self._engine.model, stream, plan, device=device, memory=memory)
        self._before = stream[-(blocks.context + 1) :]
        self._ids, self._offsets = ids[end:], np.append(0, offsets[offsets > end] - end)
        return lambda: self._complete(scores().nll[num_before:])

    def _complete(self, nll: NDArray[np.float32]) -> list[ScoredDocument]:
        """Add the scores of more tokens, and return the lines that are now complete."""
        known = np.concatenate([self._nll, nll])
        ends = np.cumsum([len(text.ids) for text in self._texts], dtype=np.int64)
        complete = int(np.searchsorted(ends, len(known), side="right"))
        *parts, self._nll = np.split(known, ends[:complete])
        texts, self._texts = self._texts[:complete], self._texts[complete:]
        return [*map(ScoredDocument, texts, parts)]


def _read_ahead(
    engine: Engine,
    texts: Iterable[EncodedText],
    start: Callable[[list[EncodedText], bool], _Result],
    num_before: int = 0,
) -> Iterator[list[ScoredDocument]]:
    """Yield groups of scored texts, while the device works on the next group.

    Each text is scored after `num_before` tokens, which count towards the size of a batch.
    """
    remaining, max_tokens = iter(texts), engine.batch_tokens
    wait_for_previous: _Result = list
    is_last = False
    while not is_last:
        group, is_last = _read(remaining, max_tokens, num_before)
        wait = start(group, is_last)
        if scored := wait_for_previous():
            yield scored
        wait_for_previous, max_tokens = wait, _BATCHES_PER_GROUP * engine.batch_tokens
    if scored := wait_for_previous():
        yield scored


def _read(
    remaining: Iterator[EncodedText], max_tokens: int, num_before: int
) -> tuple[list[EncodedText], bool]:
    """Read texts with about `max_tokens` tokens in total. Also return whether these are the last
    texts."""
    group: list[EncodedText] = []
    num_tokens = 0
    for text in remaining:
        group.append(text)
        num_tokens += num_before + len(text.ids)
        if num_tokens >= max_tokens:
            return group, False
    return group, True
