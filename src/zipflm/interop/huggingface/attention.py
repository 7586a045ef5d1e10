"""Attention masks, key-value caches and attention weights for `transformers`.

Padding is masked, and positions are counted without it, so results do not depend on padding.

Shapes: B rows, T new tokens, S tokens including cached ones, H heads, K head width, D model width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class View:
    """The attention mask, positions and key-value cache of one call, as a `model.kv_cache.Past`."""

    def __init__(self, inputs: Tensor, cache: Any | None, mask_BS: Tensor | None) -> None:
        """Create the view of one call.

        `inputs` are ids [B, T] or vectors [B, T, D]. `mask_BS` is 0 for padding, and includes the
        cached tokens.
        """
        self._cache, self._device = cache, inputs.device
        self._start = 0 if cache is None else int(cache.get_seq_length())
        rows, length = inputs.shape[:2]
        self._mask_BS = _checked_mask(mask_BS, rows, self._start + length)
        self._positions_BT = None
        if self._mask_BS is not None:
            counted_BS = self._mask_BS.cumsum(1) - 1
            self._positions_BT = counted_BS[:, self._start :].clamp(min=0)

    @property
    def is_plain(self) -> bool:
        """True if a call without mask and cache gives the same result, except at padding."""
        if self._cache is not None:
            return False
        if self._mask_BS is None:
            return True
        if torch.compiler.is_compiling():  # no branch may depend on values
            return False
        # The causal mask alone hides padding on the right.
        return bool((self._mask_BS[:, 1:] <= self._mask_BS[:, :-1]).all())

    @property
    def mask_BT(self) -> Tensor | None:
        """False for new tokens that are padding. None without padding."""
        return None if self._mask_BS is None else self._mask_BS[:, self._start :]

    @property
    def position(self) -> int | Tensor:
        return self._start if self._positions_BT is None else self._positions_BT

    def visible(self, num_new: int) -> Tensor | None:
        if self._mask_BS is None and (num_new == 1 or self._start == 0):
            return None
        shape = (num_new, self._start + num_new)
        causal_TS = torch.ones(shape, dtype=torch.bool, device=self._device).tril(self._start)
        if self._mask_BS is None:
            return causal_TS
        # Padding attends to itself: a row of attention without any position would be NaN.
        return (causal_TS & self._mask_BS[:, None, None]) | causal_TS.triu(self._start)

    def require_positions(self, positions_BT: Tensor) -> None:
        """Raise ValueError unless these are the positions of the new tokens, ignoring padding."""
        expected = self.position
        if isinstance(expected, int):
            expected = expected + torch.arange(positions_BT.shape[-1], device=self._device)[None]
        are_equal = positions_BT == expected
        if self.mask_BT is not None:
            are_equal = are_equal | ~self.mask_BT
        message = (
            "position_ids: positions follow from attention_mask and past_key_values; leave them "
            "out, and put each text in its own row"
        )
        if torch.compiler.is_compiling():
            torch._assert_async(are_equal.all(), message)
        elif not are_equal.all():
            raise ValueError(message)

    def admit(self, hidden_BTD: Tensor) -> None:
        pass

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        if self._cache is None:
            return key_BHTK, value_BHTK
        keys_BHSK, values_BHSK = self._cache.update(key_BHTK, value_BHTK, layer)
        if keys_BHSK.shape[2] != self._start + key_BHTK.shape[2]:
            raise ValueError(
                f"past_key_values: a {type(self._cache).__name__} does not return exactly the "
                "tokens so far; use a DynamicCache"
            )
        return keys_BHSK, values_BHSK

    def advance(self, num_new: int) -> None:
        pass


class EagerAttention(TorchFunctionMode):
    """Context manager that computes attention explicitly and stores its weights."""

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


def copy_last_to_padding(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Copy the vector of the last token of each row to the padding after it.

    The last position then always predicts the next token.
    """
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_BT = torch.where(mask_BT, positions_T, 0).cummax(1).values
    return hidden_BTD.gather(1, last_BT.unsqueeze(-1).expand_as(hidden_BTD))


def _checked_mask(mask: Tensor | None, rows: int, width: int) -> Tensor | None:
    """Return the mask as booleans, or None without padding.

    When compiling, a mask is always returned, because no branch may depend on values.
    """
    if mask is None:
        return None
    if tuple(mask.shape) != (rows, width):
        raise ValueError(
            f"attention_mask.shape={tuple(mask.shape)}: expected {(rows, width)}, including the "
            "tokens in past_key_values, with 1 for tokens and 0 for padding"
        )
    is_token_BS = mask != 0
    if torch.compiler.is_compiling():
        return is_token_BS
    return None if bool(is_token_BS.all()) else is_token_BS
