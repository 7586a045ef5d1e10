"""Exact search for the most likely next words, including words of several pieces."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.bpe import MAX_PIECES, join
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.language.engine import Engine, non_finite_error
from zipflm.language.text import Ids, TextReader
from zipflm.model.sampling import most_likely


class LikelyWord(NamedTuple):
    """A candidate for the next word."""

    word: str
    logprob: float
    """In nats."""


def most_likely_words(
    engine: Engine, reader: TextReader, prefixes: Sequence[Ids], k: int
) -> list[list[LikelyWord]]:
    """Return the `k` most likely words after each prefix, most likely first."""
    require_k(k, reader)
    if engine.unit == "bpe":
        return [
            _search_pieces(reader, _Pieces(engine, engine.inputs(ids), ids), k) for ids in prefixes
        ]
    if not prefixes:
        return []
    hidden, mixture = engine.hidden_after(prefixes)
    with torch.inference_mode():
        mix = None if mixture is None else mixture.log_probs
        values, ids = most_likely(engine.model.output, hidden, k, mix)
    require_no_nan(values)
    words = reader.vocabulary.words
    return [
        [LikelyWord(words[i], value) for i, value in zip(*row, strict=True)]
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def most_likely_words_at(
    engine: Engine,
    reader: TextReader,
    document: Ids,
    positions: NDArray[np.int64],
    k: int,
    skip: int = 0,
) -> list[list[LikelyWord]]:
    """Return the `k` most likely words of a subword model at these positions of a document.

    The model sees the same context as in scoring.
    """
    before = engine.inputs_before(document, positions, skip)
    return [
        _search_pieces(reader, _Pieces(engine, inputs, document[:position], context), k)
        for position, (inputs, context) in zip(positions.tolist(), before, strict=True)
    ]


def require_k(k: int, reader: TextReader, name: str = "k") -> None:
    if not (isinstance(k, int | np.integer) and 1 <= k <= reader.num_predicted):
        raise ValueError(
            f"{name}={k}: must be an integer from 1 to {reader.num_predicted}, the number of words "
            "or pieces that the model predicts"
        )


def require_no_nan(log_probs: Tensor) -> Tensor:
    """Return the values. Raises ValueError for NaN, which would sort as the most likely word."""
    if log_probs.isnan().any():
        raise non_finite_error()
    return log_probs


def _search_pieces(reader: TextReader, pieces: _Pieces, k: int) -> list[LikelyWord]:
    words: list[LikelyWord] = []
    for path, logprob in _paths(reader, pieces):
        word = join([reader.vocabulary.words[piece] for piece in path])
        # A word can be split into pieces in several ways, but the training text uses only one.
        if path in ((END,), (UNKNOWN,)) or reader.is_encoding_of(word, path):
            words.append(LikelyWord(word, logprob))
            if len(words) == k:
                break
    return words


def _paths(reader: TextReader, pieces: _Pieces) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield sequences of pieces that form a word, with log-probabilities, most likely first.

    A sequence is at most as likely as its prefix, so the next one to leave the queue is the most
    likely of those remaining. For each prefix, the queue only holds the most likely piece that is
    left.
    """
    queue: list[tuple[float, tuple[int, ...], int]] = []
    prefixes: dict[tuple[int, ...], tuple[float, NDArray[Any], NDArray[np.int32]]] = {}

    def push(prefix: tuple[int, ...], rank: int) -> None:
        before, values, _ = prefixes[prefix]
        if rank < len(values) and values[rank] > -np.inf:
            heapq.heappush(queue, (-(before + float(values[rank])), prefix, rank))

    def expand(prefix: tuple[int, ...], logprob: float) -> None:
        prefixes[prefix] = (logprob, *pieces.after(prefix))
        push(prefix, 0)

    expand((), 0.0)
    while queue:
        nll, prefix, rank = heapq.heappop(queue)
        path = (*prefix, int(prefixes[prefix][2][rank]))
        push(prefix, rank + 1)
        if reader.ends_word[path[-1]]:
            yield path, -nll
        elif len(path) < MAX_PIECES:
            expand(path, -nll)


class _Pieces:
    """Computes log-probabilities of pieces after `inputs`, which the model reads once.

    `inputs` is `</s>` followed by `text`, or the end of this sequence; a cache can reach further
    back, so it needs all of `text`. The first `context` inputs are also part of an earlier block,
    and a cache uses the hidden states computed there.
    """

    def __init__(self, engine: Engine, inputs: Ids, text: Ids, context: int = 0) -> None:
        words = torch.from_numpy(inputs).to(engine.device)
        self._engine = engine
        with torch.inference_mode():
            self._cache = engine.model.new_cache(1, len(inputs) + MAX_PIECES)
            read: Tensor = engine.model(words[None], self._cache)[0]
        self._last = read[-1:]
        self._before: Any = self._cache.snapshot()
        self._pairs = None if engine.memories is None else engine.pairs(text, read[context:])

    @torch.inference_mode()
    def after(self, pieces: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return the log-probabilities of all pieces after `pieces`, in descending order, and
        their ids (int32, because thousands of these arrays can be kept)."""
        engine, hidden = self._engine, self._last
        if pieces:
            self._cache.restore(self._before)
            words = torch.tensor([pieces], device=engine.device)
            hidden = torch.cat([hidden, engine.model(words, self._cache)[0]])
        log_probs = engine.model.output.log_probs(hidden[-1:])
        if self._pairs is not None and engine.memories is not None:
            vectors, known = self._pairs
            rows = engine.memories.rows(log_probs.shape[1])
            so_far = np.append(known, pieces).astype(np.int64)
            rows.join([(torch.cat([vectors, hidden[:-1]]), so_far)])
            log_probs = rows.lookup(hidden[-1:]).log_probs(log_probs)
        log_probs = require_no_nan(log_probs[0])
        values, ids = log_probs.sort(descending=True)
        return values.cpu().numpy(), ids.int().cpu().numpy()
