"""The continuous cache (Grave, Joulin and Usunier, 2017): looks up the recent tokens of a text by
the hidden vectors that predicted them.

Query i sees the last `window` pairs (vector, token) before position i in its document. This is
banded attention: chunks of queries are compared with the slice of keys that any of them sees.

Shapes: N predictions, B rows, C capacity of a row, D model width, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config.checks import Bound, Checked, FractionBelowOne
from zipflm.data.vocabulary import END
from zipflm.memory.mixing import Matches, Retrieved, RowIndex, Temperature, unit_vectors

_MAX_ELEMENTS = 1 << 24
"""Maximum number of cosines in memory at once."""

Reset = Literal["none", "line", "blank", "heading"]


@dataclass(frozen=True, kw_only=True)
class CacheSettings(Checked):
    """Settings of a continuous cache."""

    window: Annotated[int | None, Bound(lambda n: n is None or n >= 1, "must be at least 1")] = 2000
    """Number of recent tokens to look up (none: all)."""
    weight: FractionBelowOne = 0.15
    """Weight of the cache in the mixture."""
    temperature: Temperature = 0.08
    """Temperature of the softmax over cosines."""
    reset: Reset = "none"
    """Empty the cache after every line, blank line, or heading (a line that starts with one `=`);
    none: never."""


class Cache:
    """A continuous cache. Each text has its own `stream`, or its own row in `rows`."""

    def __init__(self, settings: CacheSettings, equals_sign: int | None = None) -> None:
        """`equals_sign` is the id of `=`, which starts a heading; None if it has no id."""
        if settings.reset == "heading" and equals_sign is None:
            raise ValueError("reset=heading: the vocabulary has no =, which starts a heading")
        self.settings: CacheSettings = settings
        self._equals_sign = equals_sign

    def with_window(self, window: int | None) -> Cache:
        return Cache(replace(self.settings, window=window), self._equals_sign)

    def stream(self) -> CacheStream:
        return CacheStream(self.settings.window)

    def rows(self) -> CacheRows:
        return CacheRows(self.settings.window)

    def document_ends(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Mark the tokens after which a new document starts. `ids` starts with a line."""
        is_end: NDArray[np.bool_] = ids == END
        reset, ends = self.settings.reset, np.flatnonzero(is_end)
        firsts = np.append(0, ends + 1)[:-1]
        if reset == "none":
            is_end[:] = False
        elif reset == "blank":
            is_end[ends] = firsts == ends
        elif reset == "heading":
            # In WikiText, `= Title =` starts an article, `= = Title = =` a section.
            is_sign = ids == self._equals_sign
            is_end[ends] = is_sign[firsts] & ~is_sign[firsts + (firsts < ends)]
        return is_end


class CacheStream:
    """The cache of one text, or of consecutive documents."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._keys_KD = torch.zeros(0)
        self._words_K = torch.zeros(0, dtype=torch.int64)
        self._since_start = 0
        """Number of tokens since the start of the document."""

    def lookup(self, hidden_ND: Tensor, words_N: Tensor, is_start: NDArray[np.bool_]) -> KeyWindow:
        queries_ND, count = unit_vectors(hidden_ND), len(hidden_ND)
        stored = len(self._words_K)
        keys_KD = torch.cat([self._keys_KD, queries_ND]) if stored else queries_ND
        words_K = torch.cat([self._words_K, words_N]) if stored else words_N
        positions = np.arange(count)
        last_start = np.maximum.accumulate(np.where(is_start, positions, -self._since_start))
        num_visible = positions - last_start
        self._since_start = int(num_visible[-1]) + 1 if count else self._since_start
        if self._window is not None:
            num_visible = np.minimum(num_visible, self._window)
        kept = min(self._since_start, self._window or self._since_start)
        self._keys_KD, self._words_K = keys_KD[-kept:], words_K[-kept:]
        ends = positions + stored
        return KeyWindow(queries_ND, keys_KD, words_K, ends - np.minimum(num_visible, ends), ends)


class KeyWindow:
    """Queries, each with the range of keys that it can see."""

    def __init__(
        self, queries_ND: Tensor, keys_KD: Tensor, words_K: Tensor, first: NDArray[Any], end: Any
    ) -> None:
        self._queries_ND, self._keys_KD, self._words_K = queries_ND, keys_KD, words_K
        self._first, self._end = first, end
        bounds = torch.from_numpy(np.stack([first, end]))
        if queries_ND.is_cuda:  # copies from pageable memory wait for the device
            bounds = bounds.pin_memory()
        self._first_N, self._end_N = bounds.to(queries_ND.device, non_blocking=True)
        self.has_match_N: Tensor = self._first_N < self._end_N
        self.rows_NK: Tensor | None = None

    def chunks(self) -> Iterator[slice]:
        """Yield slices of consecutive queries, which see similar ranges of keys."""
        widest = int((self._end - self._first).max(initial=0))
        size = max(min(widest // 8, _MAX_ELEMENTS // max(widest, 1), 1024), 64)
        for low in range(0, len(self._end), size):
            yield slice(low, low + size)

    def retrieve(self, rows: RowIndex, temperature: float) -> Retrieved:
        low, high = 0, len(self._words_K)
        if isinstance(rows, slice):  # a tensor would make the host wait
            low, high = int(self._first[rows].min()), int(self._end[rows].max())
            high = max(high, low + 1)
        first_N1, end_N1 = (bound[rows].unsqueeze(1) for bound in (self._first_N, self._end_N))
        scores_NK = (self._queries_ND[rows] / temperature) @ self._keys_KD[low:high].T
        index_K = torch.arange(low, high, device=scores_NK.device)
        is_hidden_NK = (index_K < first_N1) | (index_K >= end_N1)
        probs_NK = scores_NK.masked_fill_(is_hidden_NK, -torch.inf).softmax(1)
        return Retrieved(probs_NK, self._words_K[low:high], self.has_match_N[rows])


class CacheRows:
    """The caches of several texts, one row per text. A full cache overwrites its oldest token."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._keys_BCD = torch.zeros(0, 0, 0)
        self._words_BC = torch.zeros(0, 0, dtype=torch.int64)
        self._counts: list[int] = []
        """Number of tokens added to each row since it was last empty."""

    def join(self, hidden: Sequence[Tensor], words: Sequence[Tensor]) -> None:
        window, first = self._window, len(self._counts)
        self._counts += [len(ids) if window is None else min(len(ids), window) for ids in words]
        self._resize(len(self._counts), hidden[0])
        for row, (vectors, ids) in enumerate(zip(hidden, words, strict=True), start=first):
            if count := self._counts[row]:
                self._keys_BCD[row, :count] = unit_vectors(vectors[-count:])
                self._words_BC[row, :count] = ids[-count:]

    def keep(self, kept: Sequence[int], kept_N: Tensor) -> None:
        self._keys_BCD, self._words_BC = self._keys_BCD[kept_N], self._words_BC[kept_N]
        self._counts = [self._counts[row] for row in kept]

    def lookup(self, hidden_ND: Tensor) -> Matches:
        cosines_BC = (self._keys_BCD @ unit_vectors(hidden_ND).unsqueeze(2)).squeeze(2)
        counts_B = torch.tensor(self._counts, device=cosines_BC.device)
        is_empty_BC = torch.arange(cosines_BC.shape[1], device=counts_B.device) >= counts_B[:, None]
        return Matches(
            cosines_BC.masked_fill(is_empty_BC, -torch.inf), self._words_BC, counts_B > 0
        )

    def add(self, hidden_ND: Tensor, words_N: Tensor) -> None:
        window = self._window
        slots = [count if window is None else count % window for count in self._counts]
        self._counts = [count + 1 for count in self._counts]
        self._resize(len(slots), hidden_ND)
        slots_N = torch.tensor(slots, device=hidden_ND.device)
        rows_N = torch.arange(len(slots), device=hidden_ND.device)
        self._keys_BCD[rows_N, slots_N] = unit_vectors(hidden_ND)
        self._words_BC[rows_N, slots_N] = words_N

    def clear(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._counts[row] = 0

    def _resize(self, rows: int, like: Tensor) -> None:
        """Add rows, or capacity if it is too small. The new capacity is about twice what is needed,
        up to the window."""
        (old_rows, old_capacity), needed = self._words_BC.shape, max(self._counts, default=0)
        if rows == old_rows and (needed <= old_capacity or old_capacity == self._window):
            return
        capacity = 2 * needed + 64
        capacity = capacity if self._window is None else min(capacity, self._window)
        keys = like.new_zeros(rows, capacity, like.shape[-1], dtype=torch.float32)
        words = torch.zeros(rows, capacity, dtype=torch.int64, device=like.device)
        if old_rows:
            held = min(old_capacity, capacity)
            keys[:old_rows, :held] = self._keys_BCD[:, :held]
            words[:old_rows, :held] = self._words_BC[:, :held]
        self._keys_BCD, self._words_BC = keys, words
