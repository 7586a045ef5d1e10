"""The key-value cache of a Transformer.

Shapes: L layers, B rows, H heads, C capacity, S words held including new ones, T new words, K head
width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Past(Protocol):
    """The interface between the decoder and a cache."""

    @property
    def position(self) -> int | Tensor:
        """Number of earlier words: an int, or a tensor on the device that is a scalar or [B, 1]. If
        rows are padded on the left, the number of words before each new word, [B, T]."""
        ...

    def visible(self, num_new: int) -> Tensor | None:
        """Return the mask of words that each of `num_new` new words may attend to: [T, S], or
        [B, 1, T, S] if rows differ. None means causal attention, or full attention for a single new
        word."""

    def admit(self, hidden_BTD: Tensor) -> None:
        """Called before the first layer. Raises ValueError if the words cannot be added."""

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Append to a layer. Return keys and values [B, H, S, K] of all words, new ones last."""
        ...

    def advance(self, num_new: int) -> None:
        """Called after the last layer, when `num_new` words have been added to every layer."""


class KeyValueCache:
    """A cache for inference: `model(words, cache)` computes only the new words.

    Rows can have different lengths, and can be added and removed. Memory is allocated for the full
    capacity, and a step appends in place. The memory starts as zeros, because masked values are
    multiplied by 0, and 0 times NaN would be NaN. Use `LanguageModel.new_cache` to create a cache.

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> words = torch.tensor([[2, 17, 250, 3999]])
    >>> cache = model.new_cache(rows=1, capacity=10)
    >>> with torch.no_grad():
    ...     first, rest = model(words[:, :1], cache), model(words[:, 1:], cache)
    >>> cache.lengths, rest.shape
    ([4], torch.Size([1, 3, 64]))
    """

    def __init__(self, keys_LBHCK: Tensor, values_LBHCK: Tensor, lengths: Sequence[int]) -> None:
        self.keys_LBHCK, self.values_LBHCK = keys_LBHCK, values_LBHCK
        self.lengths = list(lengths)
        """Number of words in each row."""
        self._slots: tuple[Tensor, Tensor] | None = None
        """Rows [B, 1] and positions [B, T] of the new words, if rows differ in length."""

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        """Number of words per row that memory is allocated for."""
        return self.keys_LBHCK.shape[3]

    @property
    def position(self) -> int | Tensor:
        if len(set(self.lengths)) == 1:
            return self.lengths[0]
        return torch.tensor(self.lengths, device=self.keys_LBHCK.device).unsqueeze(1)

    def visible(self, num_new: int) -> Tensor | None:
        position, device = self.position, self.keys_LBHCK.device
        self._slots = None
        if isinstance(position, int) and (num_new == 1 or position == 0):
            return None
        new = position + torch.arange(num_new, device=device)
        visible = torch.arange(max(self.lengths) + num_new, device=device) <= new.unsqueeze(-1)
        if isinstance(position, int):
            return visible
        self._slots = torch.arange(self.rows, device=device).unsqueeze(1), new
        return visible.unsqueeze(1)

    def admit(self, hidden_BTD: Tensor) -> None:
        if hidden_BTD.requires_grad:
            raise ValueError(
                "cache: it does not support gradients; call the model under torch.no_grad() or "
                "torch.inference_mode()"
            )
        if len(hidden_BTD) != self.rows:
            raise ValueError(f"words: {len(hidden_BTD)} rows, but the cache has {self.rows} rows")
        num_new, longest = hidden_BTD.shape[1], max(self.lengths)
        if longest + num_new > self.capacity:
            raise ValueError(
                f"words: {num_new} more exceed capacity={self.capacity} of a cache that holds "
                f"{longest}; use a larger capacity"
            )
        if hidden_BTD.dtype != self.keys_LBHCK.dtype:
            raise ValueError(
                f"cache: its dtype is {self.keys_LBHCK.dtype} but the model computes in "
                f"{hidden_BTD.dtype}; create it in the same autocast context as the model's calls"
            )

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        longest, num_new = max(self.lengths), key_BHTK.shape[2]
        extended = []
        for buffer, new_BHTK in ((self.keys_LBHCK, key_BHTK), (self.values_LBHCK, value_BHTK)):
            all_BHSK = buffer[layer, : self.rows, :, : longest + num_new]
            if self._slots is None:
                all_BHSK[:, :, longest:] = new_BHTK
            else:
                rows_B1, positions_BT = self._slots
                buffer[layer, rows_B1, :, positions_BT] = new_BHTK.transpose(1, 2)
            extended.append(all_BHSK)
        return extended[0], extended[1]

    def advance(self, num_new: int) -> None:
        self.lengths = [length + num_new for length in self.lengths]

    def snapshot(self) -> list[int]:
        return list(self.lengths)

    def restore(self, snapshot: list[int]) -> None:
        """Remove the words added since the snapshot, in place."""
        self.lengths = list(snapshot)

    def select(self, rows: Sequence[int]) -> KeyValueCache:
        """Return a new cache with these rows in this order. Rows may be repeated."""
        rows_B = torch.tensor(rows, device=self.keys_LBHCK.device)
        return KeyValueCache(
            self.keys_LBHCK[:, rows_B],
            self.values_LBHCK[:, rows_B],
            [self.lengths[row] for row in rows],
        )

    def row(self, index: int) -> KeyValueCache:
        """Return a copy of one row as a cache without room for more words."""
        length = self.lengths[index]
        used = slice(None), slice(index, index + 1), slice(None), slice(length)
        return KeyValueCache(
            self.keys_LBHCK[used].clone(), self.values_LBHCK[used].clone(), [length]
        )

    def join(self, cache: KeyValueCache, capacity: int) -> None:
        """Append all rows of another cache. `capacity` is the maximum length of the old and new
        rows."""
        first = self.rows
        self._reserve(cache, first + cache.rows, max(capacity, *self.lengths, *cache.lengths))
        self.lengths = self.lengths + cache.lengths
        self.fill(range(first, self.rows), cache)

    def fill(self, rows: Sequence[int], cache: KeyValueCache) -> None:
        """Replace the contents of these rows with those of another cache."""
        used, rows_B = max(cache.lengths), torch.tensor(rows, device=self.keys_LBHCK.device)
        self.keys_LBHCK[:, rows_B, :, :used] = cache.keys_LBHCK[:, : cache.rows, :, :used]
        self.values_LBHCK[:, rows_B, :, :used] = cache.values_LBHCK[:, : cache.rows, :, :used]
        for row, length in zip(rows, cache.lengths, strict=True):
            self.lengths[row] = length

    def empty_full(self, length: int) -> list[int]:
        """Remove all words of the rows with `length` or more words, but keep the rows. Return their
        indices."""
        full = [row for row, row_length in enumerate(self.lengths) if row_length >= length]
        for row in full:
            self.lengths[row] = 0
        return full

    def drop(self, rows: Collection[int]) -> list[int]:
        """Remove these rows. Return the old indices of the remaining rows, in their new order.

        The last rows move into the gaps, to copy as little as possible.
        """
        kept = [row for row in range(self.rows) if row not in rows]
        order = list(range(len(kept)))
        gaps = [row for row in order if row in rows]
        moved = [row for row in kept if row >= len(kept)]
        for gap, row in zip(gaps, moved, strict=True):
            used = slice(self.lengths[row])
            for buffer in (self.keys_LBHCK, self.values_LBHCK):
                buffer[:, gap, :, used] = buffer[:, row, :, used]
            order[gap] = row
        self.lengths = [self.lengths[row] for row in order]
        if not kept:  # free the memory
            layers, _, heads, _, width = self.keys_LBHCK.shape
            self.keys_LBHCK = self.keys_LBHCK.new_empty(layers, 0, heads, 0, width)
            self.values_LBHCK = torch.empty_like(self.keys_LBHCK)
        return order

    def _reserve(self, like: KeyValueCache, rows: int, capacity: int) -> None:
        """Reallocate if there is not enough room."""
        if rows <= self.keys_LBHCK.shape[1] and capacity <= self.capacity:
            return
        layers, _, heads, _, width = like.keys_LBHCK.shape
        rows = 1 << (rows - 1).bit_length() if self.rows else rows  # grow geometrically
        keys = like.keys_LBHCK.new_zeros(layers, rows, heads, capacity, width)
        values = torch.zeros_like(keys)
        if self.rows:
            used = slice(self.rows), slice(None), slice(max(self.lengths))
            for new, old in ((keys, self.keys_LBHCK), (values, self.values_LBHCK)):
                new[:, *used] = old[:, *used]
        self.keys_LBHCK, self.values_LBHCK = keys, values
