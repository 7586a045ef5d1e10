"""Keys and values of texts of different lengths, which come and go while others are written.

Every row begins at place 0 and ends where its words end; what lies behind that is hidden from
attention by a mask. So each row gets the vectors that it would get alone, whatever stands beside
it, and a text joins or leaves without touching the others.

Shapes: L layers, B rows, H heads, C capacity, S the longest row including new words, T new words, K
head width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from zipflm.model.cache import KeyValueCache, require_rows


class RaggedCache:
    """A `Past` whose rows need not be equally long; they join from ordinary caches.

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> ragged = RaggedCache()
    >>> with torch.inference_mode():
    ...     for words in ([2, 17, 250], [2, 3999]):
    ...         cache = model.new_cache(rows=1, capacity=len(words))
    ...         hidden = model(torch.tensor([words]), cache)
    ...         ragged.join(cache, [len(words)], capacity=10)
    ...     hidden = model(torch.tensor([[5], [6]]), ragged)
    >>> ragged.lengths, hidden.shape
    ([4, 3], torch.Size([2, 1, 64]))
    """

    def __init__(self) -> None:
        self._forget_all()

    def _forget_all(self) -> None:
        """Gives its memory back."""
        self._lengths: list[int] = []
        self._rooms: list[int] = []
        """How long each row will ever be."""
        empty = torch.zeros(0, 0, 0, 0, 0)
        self._keys_LBHCK, self._values_LBHCK = empty, empty
        self._places_BT = torch.zeros(0, 0, dtype=torch.long)

    @property
    def lengths(self) -> list[int]:
        """Number of words that each row holds."""
        return list(self._lengths)

    @property
    def rows(self) -> int:
        return len(self._lengths)

    @property
    def capacity(self) -> int:
        """Words for which every row has room."""
        return self._keys_LBHCK.shape[3]

    def join(self, cache: KeyValueCache, lengths: Sequence[int], capacity: int) -> None:
        """Add all rows of a cache; of row i its first `lengths[i]` words, the rest being padding.

        `capacity` is how long any of them will ever be.
        """
        first, longest = self.rows, max(lengths)
        self._reserve(
            cache, first + cache.rows, max(capacity, longest, *self._rooms, *self._lengths)
        )
        rows = slice(first, first + cache.rows)
        self._keys_LBHCK[:, rows, :, :longest] = cache.keys_LBHCK[:, :, :, :longest]
        self._values_LBHCK[:, rows, :, :longest] = cache.values_LBHCK[:, :, :, :longest]
        self._lengths += lengths
        self._rooms += [max(capacity, length) for length in lengths]

    def drop(self, rows: Collection[int]) -> list[int]:
        """Forget these rows; which of the old ones stand in the places that are left, in order.

        The last ones move to where rows were dropped, so that little is copied.
        """
        kept = [row for row in range(self.rows) if row not in rows]
        order = list(range(len(kept)))
        holes = [row for row in order if row in rows]
        movers = [row for row in kept if row >= len(kept)]
        for hole, mover in zip(holes, movers, strict=True):
            end = self._lengths[mover]
            for buffer in (self._keys_LBHCK, self._values_LBHCK):
                buffer[:, hole, :, :end] = buffer[:, mover, :, :end]
            self._lengths[hole], self._rooms[hole] = end, self._rooms[mover]
            order[hole] = mover
        del self._lengths[len(kept) :], self._rooms[len(kept) :]
        if not kept:
            self._forget_all()
        return order

    # --- What the decoder asks for. ---

    @property
    def position(self) -> Tensor:
        """Number of words before the new ones in each row, [B, 1]."""
        return torch.tensor(self._lengths, device=self._keys_LBHCK.device).unsqueeze(1)

    def visible(self, number: int) -> Tensor:
        """[B, 1, T, S]: a row's own words up to each new one."""
        self._places_BT = self.position + torch.arange(number, device=self._keys_LBHCK.device)
        slots_S = torch.arange(max(self._lengths) + number, device=self._keys_LBHCK.device)
        return (slots_S <= self._places_BT.unsqueeze(-1)).unsqueeze(1)

    def admit(self, hidden_BTD: Tensor) -> None:
        require_rows(hidden_BTD, self.rows)

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        rows, end = self.rows, max(self._lengths) + key_BHTK.shape[2]
        rows_B1 = torch.arange(rows, device=key_BHTK.device).unsqueeze(1)
        held = []
        for buffer, new_BHTK in ((self._keys_LBHCK, key_BHTK), (self._values_LBHCK, value_BHTK)):
            buffer[layer, rows_B1, :, self._places_BT] = new_BHTK.transpose(1, 2)
            held.append(buffer[layer, :rows, :, :end])
        return held[0], held[1]

    def advance(self, number: int) -> None:
        self._lengths = [length + number for length in self._lengths]

    def _reserve(self, like: KeyValueCache, rows: int, capacity: int) -> None:
        """Room for so many rows of so many words. What is made anew is no longer than the rows that
        are there will be, whatever rows there were before."""
        if rows <= self._keys_LBHCK.shape[1] and capacity <= self.capacity:
            return
        layers, _, heads, _, width = like.keys_LBHCK.shape
        rows = 1 << (rows - 1).bit_length()  # so that it is not made anew for every row
        # Zeros: what is masked still meets a weight of 0, and 0 times NaN would be NaN.
        keys = like.keys_LBHCK.new_zeros(layers, rows, heads, capacity, width)
        values = torch.zeros_like(keys)
        if self.rows:
            held = slice(self.rows), slice(None), slice(max(self._lengths))
            for new, old in ((keys, self._keys_LBHCK), (values, self._values_LBHCK)):
                new[:, *held] = old[:, *held]
        self._keys_LBHCK, self._values_LBHCK = keys, values
