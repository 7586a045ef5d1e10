"""Rows added up by their targets, in float32 and in one order: for `softmax_exps_triton`.

Some targets have one row and some, as the token of a tail in the head, have all of them. So rows
are sorted by target and cut into pieces of one size, which are added up side by side; a target
that lies in several pieces is put together from these.

Shapes: N tokens, E width, V words.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIECE, _ROWS, _COLUMNS = 128, 16, 256


@triton.jit
def _targets_kernel(
    hidden_ptr,  # [N, E]
    miss_ptr,
    targets_ptr,  # [N], ascending
    order_ptr,  # [N], the row of each
    d_weight_ptr,  # [V, E] float32
    pieces_ptr,  # [pieces, 2, E] float32
    num_rows,
    width,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """d_weight of a target less miss * hidden of its rows, if these all lie in one piece.

    The program of the first of them has them all, so nobody else writes there and they are added
    in one order. Of others the sum over a piece is kept: [:, 1] where the target begins in it,
    [:, 0] where it goes on from the piece before.
    """
    first = tl.program_id(0)
    target = tl.load(targets_ptr + first)
    begins = tl.load(targets_ptr + first - 1, mask=first > 0, other=-1) != target
    if begins | (first % PIECE == 0):
        piece = first // PIECE
        end = tl.minimum((piece + 1) * PIECE, num_rows)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < width
        total = tl.zeros([COLUMNS], tl.float32)
        start = first
        more = 1
        while more > 0:
            places = start + tl.arange(0, ROWS)
            is_mine = tl.load(targets_ptr + places, mask=places < end, other=-1) == target
            rows = tl.load(order_ptr + places, mask=is_mine, other=0).to(tl.int64)
            miss = tl.load(miss_ptr + rows, mask=is_mine, other=0.0)
            hidden = tl.load(
                hidden_ptr + rows[:, None] * width + columns[None, :],
                mask=is_mine[:, None] & is_column[None, :],
                other=0.0,
            )
            total += tl.sum(miss[:, None] * hidden.to(tl.float32), 0)
            start += ROWS
            more = tl.min(is_mine.to(tl.int32), 0)
        goes_on = tl.load(targets_ptr + end, mask=end < num_rows, other=-1) == target
        if begins & (goes_on == 0):
            at = d_weight_ptr + target.to(tl.int64) * width + columns
            tl.store(at, tl.load(at, mask=is_column, other=0.0) - total, mask=is_column)
        else:
            slot = 2 * piece + begins.to(tl.int32)
            tl.store(pieces_ptr + slot.to(tl.int64) * width + columns, total, mask=is_column)


@triton.jit
def _pieces_kernel(
    targets_ptr,
    d_weight_ptr,
    pieces_ptr,
    num_rows,
    num_pieces,
    width,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """d_weight of the target that begins in this piece and goes on in the next, less all of it."""
    piece = tl.program_id(0)
    first, end = piece * PIECE, tl.minimum((piece + 1) * PIECE, num_rows)
    target = tl.load(targets_ptr + end - 1)
    begins = tl.load(targets_ptr + first - 1, mask=first > 0, other=-1) != target
    goes_on = tl.load(targets_ptr + end, mask=end < num_rows, other=-1) == target
    if begins & goes_on:
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = columns < width
        slot = (2 * piece + 1).to(tl.int64)
        total = tl.load(pieces_ptr + slot * width + columns, mask=is_column, other=0.0)
        start = piece + 1
        more = 1
        while more > 0:
            places = start + tl.arange(0, ROWS)
            firsts = tl.load(targets_ptr + places * PIECE, mask=places < num_pieces, other=-1)
            is_mine = firsts == target
            parts = tl.load(
                pieces_ptr + (2 * places).to(tl.int64)[:, None] * width + columns[None, :],
                mask=is_mine[:, None] & is_column[None, :],
                other=0.0,
            )
            total += tl.sum(parts, 0)
            start += ROWS
            more = tl.min(is_mine.to(tl.int32), 0)
        at = d_weight_ptr + target.to(tl.int64) * width + columns
        tl.store(at, tl.load(at, mask=is_column, other=0.0) - total, mask=is_column)


def subtract_targets(
    d_weight_VE: Tensor, hidden_NE: Tensor, miss_N: Tensor, targets_N: Tensor
) -> None:
    """Take miss * hidden of every row from its target's gradient, in float32."""
    targets_N, order_N = targets_N.sort(stable=True)
    rows, width = hidden_NE.shape
    num_pieces, columns = triton.cdiv(rows, _PIECE), triton.cdiv(width, _COLUMNS)
    pieces = torch.empty(num_pieces, 2, width, dtype=torch.float32, device=hidden_NE.device)
    blocks: Any = {"PIECE": _PIECE, "ROWS": _ROWS, "COLUMNS": _COLUMNS}
    _targets_kernel[(rows, columns)](
        hidden_NE.contiguous(),
        miss_N,
        targets_N,
        order_N,
        d_weight_VE,
        pieces,
        rows,
        width,
        **blocks,
    )
    _pieces_kernel[(num_pieces, columns)](
        targets_N, d_weight_VE, pieces, rows, num_pieces, width, **blocks
    )
