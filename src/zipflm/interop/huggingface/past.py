"""What the decoder asks of earlier words, answered from a cache and a mask of `transformers`.

Padding takes no place: it is hidden from all words, and words behind it are numbered as if it were
not there. So a row has the same numbers with padding on either side and without.

Shapes: B rows, T new words, S words including earlier ones, H heads, K head width, D model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zipflm.quoting import quoted


class View:
    """Which words a call sees, and where they stand: a `Past` for the decoder."""

    def __init__(self, words_BT: Tensor, cache: Any | None, mask_BS: Tensor | None) -> None:
        """`mask_BS` is 0 for padding, among earlier words too."""
        self._cache, self._device = cache, words_BT.device
        self._start = 0 if cache is None else int(cache.get_seq_length())
        rows, number = words_BT.shape
        self._mask_BS = _checked_mask(mask_BS, rows, self._start + number)
        self._positions_BT = None
        if self._mask_BS is not None:
            counted_BS = self._mask_BS.cumsum(1) - 1
            self._positions_BT = counted_BS[:, self._start :].clamp(min=0)

    @property
    def is_plain(self) -> bool:
        """Whether the model sees the same words at the same places if it is told nothing."""
        return self._cache is None and self._is_padded_on_the_right

    @property
    def mask_BT(self) -> Tensor | None:
        """Which of the new words are no padding; None if all are."""
        return None if self._mask_BS is None else self._mask_BS[:, self._start :]

    @property
    def position(self) -> int | Tensor:
        return self._start if self._positions_BT is None else self._positions_BT

    def visible(self, number: int) -> Tensor | None:
        if self._mask_BS is None and (number == 1 or self._start == 0):
            return None
        shape = (number, self._start + number)
        causal_TS = torch.ones(shape, dtype=torch.bool, device=self._device).tril(self._start)
        if self._mask_BS is None:
            return causal_TS
        # Padding sees itself: what sees nothing at all has no finite attention.
        return (causal_TS & self._mask_BS[:, None, None]) | causal_TS.triu(self._start)

    def admit(self, hidden_BTD: Tensor) -> None:
        pass

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        if self._cache is None:
            return key_BHTK, value_BHTK
        keys_BHSK, values_BHSK = self._cache.update(key_BHTK, value_BHTK, layer)
        if keys_BHSK.shape[2] != self._start + key_BHTK.shape[2]:
            raise ValueError(
                f"past_key_values: a {type(self._cache).__name__} returns other words than those "
                "it was given; use a DynamicCache"
            )
        return keys_BHSK, values_BHSK

    def advance(self, number: int) -> None:
        pass

    def require_positions(self, positions: Tensor) -> None:
        """ValueError unless these are the positions at which the new words stand here."""
        ours = self.position
        if isinstance(ours, int):
            ours = torch.arange(ours, ours + positions.shape[-1], device=positions.device)[None]
        is_word = torch.ones_like(ours, dtype=torch.bool) if self.mask_BT is None else self.mask_BT
        if positions.dim() != 2 or not bool(((positions == ours) | ~is_word).all()):
            raise ValueError(
                f"position_ids={quoted(positions.tolist())}: positions follow from attention_mask "
                "and past_key_values here; leave them out, and put each text into a row of its own"
            )

    @property
    def _is_padded_on_the_right(self) -> bool:
        """Where causality hides it; or not at all."""
        if self._mask_BS is None:
            return True
        # Nothing but padding behind padding.
        return bool((self._mask_BS[:, 1:] <= self._mask_BS[:, :-1]).all())


def after_last_word(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Hidden vectors in which padding behind a word has the word's own, so that what follows a row
    is predicted at its end, padded or not."""
    places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_BT = torch.where(mask_BT, places_T, 0).cummax(1).values
    return hidden_BTD.gather(1, last_BT.unsqueeze(-1).expand_as(hidden_BTD))


def _checked_mask(mask: Tensor | None, rows: int, width: int) -> Tensor | None:
    """As booleans; None if nothing is padding."""
    if mask is None:
        return None
    if tuple(mask.shape) != (rows, width):
        raise ValueError(
            f"attention_mask.shape={tuple(mask.shape)}: give 1 for words and 0 for padding, "
            f"{(rows, width)}, the words that past_key_values holds included"
        )
    is_word_BS = mask != 0
    return None if bool(is_word_BS.all()) else is_word_BS
