"""What the decoder asks of earlier words, answered from a cache and a mask of `transformers`.

Padding takes no place: it is hidden from all words, and words behind it are numbered as if it were
not there. So a row has the same numbers with padding on either side and without.

Shapes: B rows, T new words, S words including earlier ones, H heads, K head width, D model width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from zipflm.quoting import quoted


class View:
    """Which words a call sees, and where they stand: a `Past` for the decoder."""

    def __init__(self, inputs: Tensor, cache: Any | None, mask_BS: Tensor | None) -> None:
        """`inputs` are words [B, T] or their vectors [B, T, D]; `mask_BS` is 0 for padding, among
        earlier words too."""
        self._cache, self._device = cache, inputs.device
        self._start = 0 if cache is None else int(cache.get_seq_length())
        rows, number = inputs.shape[:2]
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
        advice = (
            "positions follow from attention_mask and past_key_values here; leave them out, and "
            "put each text into a row of its own"
        )
        are_ours = ((positions == ours) | ~is_word).all()
        if torch.compiler.is_compiling():
            torch._assert_async(are_ours, f"position_ids: {advice}")
        elif positions.dim() != 2 or not bool(are_ours):
            raise ValueError(f"position_ids={quoted(positions.tolist())}: {advice}")

    @property
    def _is_padded_on_the_right(self) -> bool:
        """Where causality hides it; or not at all."""
        if self._mask_BS is None:
            return True
        if torch.compiler.is_compiling():  # no branch may depend on values
            return False
        # Nothing but padding behind padding.
        return bool((self._mask_BS[:, 1:] <= self._mask_BS[:, :-1]).all())


class EagerAttention(TorchFunctionMode):
    """Within this context attention is computed step by step, and its weights are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []
        """One [B, H, T, S] per layer."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        is_attention = function is F.scaled_dot_product_attention
        return (self._attend if is_attention else function)(*args, **(kwargs or {}))

    def _attend(
        self,
        query_BHTK: Tensor,
        key_BHSK: Tensor,
        value_BHSK: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
    ) -> Tensor:
        scores_BHTS = query_BHTK @ key_BHSK.transpose(2, 3) / math.sqrt(query_BHTK.shape[3])
        if is_causal:
            attn_mask = torch.ones_like(scores_BHTS[0, 0], dtype=torch.bool).tril()
        if attn_mask is not None:
            scores_BHTS = scores_BHTS.masked_fill(~attn_mask, -torch.inf)
        weights_BHTS = scores_BHTS.softmax(-1, torch.float32).to(query_BHTK.dtype)
        self.weights.append(weights_BHTS)
        return F.dropout(weights_BHTS, dropout_p) @ value_BHSK


def after_last_word(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Hidden vectors in which padding behind a word has the word's own, so that what follows a row
    is predicted at its end, padded or not."""
    places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_BT = torch.where(mask_BT, places_T, 0).cummax(1).values
    return hidden_BTD.gather(1, last_BT.unsqueeze(-1).expand_as(hidden_BTD))


def _checked_mask(mask: Tensor | None, rows: int, width: int) -> Tensor | None:
    """As booleans; None if nothing is padding, unless this is being compiled or exported, where no
    branch may depend on values."""
    if mask is None:
        return None
    if tuple(mask.shape) != (rows, width):
        raise ValueError(
            f"attention_mask.shape={tuple(mask.shape)}: give 1 for words and 0 for padding, "
            f"{(rows, width)}, the words that past_key_values holds included"
        )
    is_word_BS = mask != 0
    if torch.compiler.is_compiling():
        return is_word_BS
    return None if bool(is_word_BS.all()) else is_word_BS
