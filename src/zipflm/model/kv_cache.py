"""Key-value caches of a Transformer.

`KeyValueCache` holds rows of equal length, `RaggedCache` rows of different lengths that can join
and leave. Memory is allocated once for the full capacity; a step appends in place.

Shapes: L layers, B rows, H heads, C capacity, S words held including new ones, T new words, K head
width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from zipflm.config import TransformerDecoder


class Past(Protocol):
    """The interface between the decoder and a cache."""

    @property
    def position(self) -> int | Tensor:
        """Number of earlier words: an int, or a tensor on the device, a scalar or [B, 1]. If rows
        are padded on the left, the number for each new word, [B, T]."""
        ...

    def visible(self, num_new: int) -> Tensor | None:
        """Return the mask of words that each of `num_new` words may attend to: [T, S], or
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
    """A cache for inference: `model(words, cache=cache)` computes only the new words.

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> words = torch.tensor([[2, 17, 250, 3999]])
    >>> cache = model.new_cache(rows=1, capacity=10)
    >>> with torch.no_grad():
    ...     first, rest = model(words[:, :1], cache), model(words[:, 1:], cache)
    >>> cache.length, rest.shape
    (4, torch.Size([1, 3, 64]))
    """

    def __init__(
        self,
        config: TransformerDecoder,
        rows: int,
        capacity: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        """`dtype` is the dtype of matrix products. Use `LanguageModel.new_cache` to create one."""
        heads, head_dim = config.num_heads, config.dim // config.num_heads
        shape = (config.num_layers, rows, heads, capacity, head_dim)
        self.keys_LBHCK: Tensor = torch.empty(shape, device=device, dtype=dtype)
        self.values_LBHCK: Tensor = torch.empty_like(self.keys_LBHCK)
        self._length = 0

    @property
    def length(self) -> int:
        """Number of words in every row."""
        return self._length

    @property
    def position(self) -> int:
        return self._length

    def visible(self, num_new: int) -> Tensor | None:
        if num_new == 1 or self._length == 0:
            return None
        shape = (num_new, self._length + num_new)
        ones_TS = torch.ones(shape, dtype=torch.bool, device=self.keys_LBHCK.device)
        return ones_TS.tril(self._length)

    @property
    def rows(self) -> int:
        return self.keys_LBHCK.shape[1]

    @property
    def capacity(self) -> int:
        """Maximum length."""
        return self.keys_LBHCK.shape[3]

    def select(self, rows: Tensor) -> KeyValueCache:
        """Return a new cache with these rows in this order. Rows may be repeated."""
        selected = object.__new__(KeyValueCache)
        selected._length = self._length
        selected.keys_LBHCK = self._select_from(self.keys_LBHCK, rows)
        selected.values_LBHCK = self._select_from(self.values_LBHCK, rows)
        return selected

    def snapshot(self) -> int:
        return self._length

    def restore(self, snapshot: int) -> None:
        """Remove the words added since the snapshot, in place."""
        self._length = snapshot

    def admit(self, hidden_BTD: Tensor) -> None:
        require_rows(hidden_BTD, self.rows)
        num_new = hidden_BTD.shape[1]
        if self._length + num_new > self.capacity:
            raise ValueError(
                f"words: {num_new} more exceed capacity={self.capacity} of a cache that holds "
                f"{self._length}; use a larger capacity"
            )
        if hidden_BTD.dtype != self.keys_LBHCK.dtype:
            raise ValueError(
                f"cache: its dtype is {self.keys_LBHCK.dtype} but the model computes in "
                f"{hidden_BTD.dtype}; create it in the same autocast context as the model's calls"
            )

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        end = self._length + key_BHTK.shape[2]
        keys_BHSK = self.keys_LBHCK[layer, :, :, :end]
        values_BHSK = self.values_LBHCK[layer, :, :, :end]
        keys_BHSK[:, :, self._length :] = key_BHTK
        values_BHSK[:, :, self._length :] = value_BHTK
        return keys_BHSK, values_BHSK

    def advance(self, num_new: int) -> None:
        self._length += num_new

    def _select_from(self, buffer_LBHCK: Tensor, rows: Tensor) -> Tensor:
        """Return rows in a buffer of the same capacity. Only the used part is copied."""
        layers, _, heads, capacity, width = buffer_LBHCK.shape
        selected_LBHCK = buffer_LBHCK.new_empty(layers, len(rows), heads, capacity, width)
        used = buffer_LBHCK[:, :, :, : self._length].index_select(1, rows)
        selected_LBHCK[:, :, :, : self._length] = used
        return selected_LBHCK


def require_rows(hidden_BTD: Tensor, rows: int) -> None:
    """Raise ValueError if the input requires gradients or has a different number of rows."""
    if hidden_BTD.requires_grad:
        raise ValueError(
            "cache: it does not support gradients; call the model under torch.no_grad() or "
            "torch.inference_mode()"
        )
    if len(hidden_BTD) != rows:
        raise ValueError(f"words: {len(hidden_BTD)} rows, but the cache has {rows} rows")


class RaggedCache:
    """A cache of rows with different lengths, which are copied from `KeyValueCache`s.

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
        self._clear()

    def _clear(self) -> None:
        """Remove all rows and free their memory."""
        self._lengths: list[int] = []
        self._capacities: list[int] = []
        """Maximum length of each row."""
        empty = torch.zeros(0, 0, 0, 0, 0)
        self.keys_LBHCK, self.values_LBHCK = empty, empty
        self._slots_BT: Tensor | None = None
        """Slots of the new words, if rows differ."""

    @property
    def lengths(self) -> list[int]:
        """Number of words in each row."""
        return list(self._lengths)

    @property
    def rows(self) -> int:
        return len(self._lengths)

    @property
    def capacity(self) -> int:
        """Number of allocated words per row."""
        return self.keys_LBHCK.shape[3]

    def join(self, cache: KeyValueCache, lengths: Sequence[int], capacity: int) -> None:
        """Append all rows of a cache. Row i has `lengths[i]` words; the rest is padding.

        `capacity` is the maximum length of the new rows.
        """
        first = self.rows
        capacities = [max(capacity, length) for length in lengths]
        longest = max([*capacities, *self._capacities, *self._lengths])
        self._reserve(cache, first + cache.rows, longest)
        self._lengths += lengths
        self._capacities += capacities
        self.fill(range(first, self.rows), cache, lengths)

    def fill(self, rows: Sequence[int], cache: KeyValueCache, lengths: Sequence[int]) -> None:
        """Replace the contents of these rows with those of a cache."""
        longest, rows_B = max(lengths), torch.tensor(rows, device=self.keys_LBHCK.device)
        self.keys_LBHCK[:, rows_B, :, :longest] = cache.keys_LBHCK[:, :, :, :longest]
        self.values_LBHCK[:, rows_B, :, :longest] = cache.values_LBHCK[:, :, :, :longest]
        for row, length in zip(rows, lengths, strict=True):
            self._lengths[row] = length

    def full(self, length: int) -> list[int]:
        """Return the rows with `length` or more words."""
        return [row for row, row_length in enumerate(self._lengths) if row_length >= length]

    def empty(self, rows: Collection[int]) -> None:
        """Remove all words of these rows but keep the rows."""
        for row in rows:
            self._lengths[row] = 0

    def row(self, index: int) -> KeyValueCache:
        """Return a copy of one row, without room for more words."""
        copied, end = object.__new__(KeyValueCache), self._lengths[index]
        copied._length = end
        copied.keys_LBHCK = self.keys_LBHCK[:, index : index + 1, :, :end].clone()
        copied.values_LBHCK = self.values_LBHCK[:, index : index + 1, :, :end].clone()
        return copied

    def drop(self, rows: Collection[int]) -> list[int]:
        """Remove these rows. Return the old indices of the remaining rows, in their new order.

        The last rows move into the gaps, to copy as little as possible.
        """
        kept = [row for row in range(self.rows) if row not in rows]
        order = list(range(len(kept)))
        gaps = [row for row in order if row in rows]
        moved = [row for row in kept if row >= len(kept)]
        for gap, row in zip(gaps, moved, strict=True):
            end = self._lengths[row]
            for buffer in (self.keys_LBHCK, self.values_LBHCK):
                buffer[:, gap, :, :end] = buffer[:, row, :, :end]
            self._lengths[gap], self._capacities[gap] = end, self._capacities[row]
            order[gap] = row
        del self._lengths[len(kept) :], self._capacities[len(kept) :]
        if not kept:
            self._clear()
        return order

    @property
    def position(self) -> int | Tensor:
        if len(set(self._lengths)) == 1:
            return self._lengths[0]
        return torch.tensor(self._lengths, device=self.keys_LBHCK.device).unsqueeze(1)

    def visible(self, num_new: int) -> Tensor | None:
        position, device = self.position, self.keys_LBHCK.device
        if num_new == 1 and isinstance(position, int):
            self._slots_BT = None
            return None
        self._slots_BT = position + torch.arange(num_new, device=device).expand(self.rows, -1)
        slots_S = torch.arange(max(self._lengths) + num_new, device=device)
        return (slots_S <= self._slots_BT.unsqueeze(-1)).unsqueeze(1)

    def admit(self, hidden_BTD: Tensor) -> None:
        require_rows(hidden_BTD, self.rows)

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        rows, end = self.rows, max(self._lengths) + key_BHTK.shape[2]
        rows_B1 = torch.arange(rows, device=key_BHTK.device).unsqueeze(1)
        extended = []
        for buffer, new_BHTK in ((self.keys_LBHCK, key_BHTK), (self.values_LBHCK, value_BHTK)):
            if self._slots_BT is None:
                buffer[layer, :rows, :, end - 1 : end] = new_BHTK
            else:
                buffer[layer, rows_B1, :, self._slots_BT] = new_BHTK.transpose(1, 2)
            extended.append(buffer[layer, :rows, :, :end])
        return extended[0], extended[1]

    def advance(self, num_new: int) -> None:
        self._lengths = [length + num_new for length in self._lengths]

    def _reserve(self, like: KeyValueCache, rows: int, capacity: int) -> None:
        """Reallocate if there is not enough room. The new capacity may be smaller than before."""
        if rows <= self.keys_LBHCK.shape[1] and capacity <= self.capacity:
            return
        layers, _, heads, _, width = like.keys_LBHCK.shape
        rows = 1 << (rows - 1).bit_length()  # grow geometrically
        # Zeros, because masked slots are multiplied by 0, and 0 times NaN would be NaN.
        keys = like.keys_LBHCK.new_zeros(layers, rows, heads, capacity, width)
        values = torch.zeros_like(keys)
        if self.rows:
            used = slice(self.rows), slice(None), slice(max(self._lengths))
            for new, old in ((keys, self.keys_LBHCK), (values, self.values_LBHCK)):
                new[:, *used] = old[:, *used]
        self.keys_LBHCK, self.values_LBHCK = keys, values
