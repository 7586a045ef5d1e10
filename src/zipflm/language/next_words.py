"""The most likely next words, exactly: of a vocabulary of words, or of all words in pieces."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.bpe import join
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.language.engine import Engine, diverged
from zipflm.language.text import Ids, TextReader
from zipflm.memory.mixing import Mixture
from zipflm.model.sampling import most_likely

MOST_PIECES = 64
"""Of a word; longer ones are not looked for."""


class LikelyWord(NamedTuple):
    """A word that may come next."""

    word: str
    logprob: float
    """Natural logarithm of its probability."""


def most_likely_words(
    engine: Engine, reader: TextReader, prefixes: Sequence[Ids], k: int
) -> list[list[LikelyWord]]:
    """The `k` most likely words after each prefix, most likely first."""
    require_k(k, reader)
    if engine.unit == "bpe":
        return [_in_pieces(reader, _Pieces(engine, engine.inputs(ids), ids), k) for ids in prefixes]
    return _of_hidden(engine, reader, *engine.mixture_after(prefixes), k) if prefixes else []


def most_likely_instead(
    engine: Engine,
    reader: TextReader,
    document: Ids,
    places: NDArray[np.int64],
    k: int,
    skip: int = 0,
) -> list[list[LikelyWord]]:
    """The `k` most likely words in pieces at these places of a document, seen as it is scored."""
    before = engine.inputs_before(document, places, skip)
    return [
        _in_pieces(reader, _Pieces(engine, inputs, document[:place], context), k)
        for place, (inputs, context) in zip(places.tolist(), before, strict=True)
    ]


def require_k(k: int, reader: TextReader, name: str = "k") -> None:
    if not 1 <= k <= reader.num_predicted:
        raise ValueError(
            f"{name}={k}: must be 1 to {reader.num_predicted}, the size of the vocabulary"
        )


def require_numbers(log_probs: Tensor) -> Tensor:
    """The same; ValueError where there is none, since some word would come out on top even so."""
    if log_probs.isnan().any():
        raise diverged()
    return log_probs


@torch.inference_mode()
def _of_hidden(
    engine: Engine, reader: TextReader, hidden: Tensor, mixture: Mixture | None, k: int
) -> list[list[LikelyWord]]:
    words = reader.vocabulary.words
    mix = None if mixture is None else mixture.log_probs
    values, ids = most_likely(engine.model.output, hidden, k, mix)
    require_numbers(values)
    return [
        [LikelyWord(words[i], value) for i, value in zip(*row, strict=True)]
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def _in_pieces(reader: TextReader, pieces: _Pieces, k: int) -> list[LikelyWord]:
    """Words come out of the search most likely first, so the first `k` are the answer."""
    found: list[LikelyWord] = []
    for path, logprob in _paths(reader, pieces):
        word = join([reader.vocabulary.words[piece] for piece in path])
        # A word has as many ways to be spelt in pieces as its letters allow. The model was
        # trained on one of them, and that is the one that is scored.
        if path in ((END,), (UNKNOWN,)) or reader.is_spelt(word, path):
            found.append(LikelyWord(word, logprob))
            if len(found) == k:
                break
    return found


def _paths(reader: TextReader, pieces: _Pieces) -> Iterator[tuple[tuple[int, ...], float]]:
    """Sequences of pieces that end a word, with their log-probabilities, in falling order.

    Best first: a path is at most as likely as its beginning, so whatever leaves the queue before
    all others is the next. Of each beginning only the best piece that is left waits in the queue.
    """
    queue: list[tuple[float, tuple[int, ...], int]] = []
    beginnings: dict[tuple[int, ...], tuple[float, NDArray[Any], NDArray[np.int32]]] = {}

    def put(beginning: tuple[int, ...], place: int) -> None:
        before, values, _ = beginnings[beginning]
        if place < len(values) and values[place] > -np.inf:
            heapq.heappush(queue, (-(before + float(values[place])), beginning, place))

    def open_up(beginning: tuple[int, ...], logprob: float) -> None:
        beginnings[beginning] = (logprob, *pieces.after(beginning))
        put(beginning, 0)

    open_up((), 0.0)
    while queue:
        nll, beginning, place = heapq.heappop(queue)
        path = (*beginning, int(beginnings[beginning][2][place]))
        put(beginning, place + 1)
        if reader.ends_word[path[-1]]:
            yield path, -nll
        elif len(path) < MOST_PIECES:
            open_up(path, -nll)


class _Pieces:
    """Log-probabilities of pieces after some inputs, which pass through the model once. They are
    the end of a text, of which memories may know more. The first `context` of them are read again:
    memories know them as an earlier part saw them."""

    def __init__(self, engine: Engine, inputs: Ids, text: Ids, context: int = 0) -> None:
        words = torch.from_numpy(inputs).to(engine.device)
        self._engine = engine
        with torch.inference_mode():
            self._cache = engine.model.new_cache(1, len(inputs) + MOST_PIECES)
            read: Tensor = engine.model(words[None], self._cache)[0]
        self._last = read[-1:]
        self._before: Any = self._cache.snapshot()
        self._pairs = None if engine.memories is None else engine.pairs(text, read[context:])

    @torch.inference_mode()
    def after(self, pieces: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Of all pieces, in falling order, and their ids; small, because thousands may be kept."""
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
            log_probs = rows.look(hidden[-1:]).log_probs(log_probs)
        log_probs = require_numbers(log_probs[0])
        values, ids = log_probs.sort(descending=True)
        return values.cpu().numpy(), ids.int().cpu().numpy()
