"""`linear_nll` on a GPU for narrow bands: logits never leave the registers.

Active rows are moved to the front and their number stays on the device, so that a band costs what
its own tokens cost and the host never asks how many there are.

The gradient of a hidden vector is the mean of all words' weights under the softmax, less those of
the target. This is attention, with words for keys and values, and can be computed in one pass
together with the log-sum-exp. The gradient of the weights needs the log-sum-exp first and computes
the logits once more.

For widths up to `MAX_WIDTH`: a block of rows must fit into registers.

Shapes: N tokens (active ones in front), E width, V words, S segments (all that one program has of
one block of rows), R rows of a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from zipflm.kernels.linear_nll_kernels_triton import (
    join_kernel,
    rows_kernel,
    weight_gradient_kernel,
)
from zipflm.kernels.operators import Nll, nll_operator, nll_sum_operator

MAX_WIDTH = 512


class _Blocks(NamedTuple):
    rows: int
    words: int
    warps: int
    stages: int


# Of a kernel up to a width: the fastest of eight or nine choices on an H200, with 3 to 24 % of the
# rows active and with all of them. Without the mean, as with it.
_BLOCKS = {
    "lse": {128: _Blocks(128, 64, 4, 3), 256: _Blocks(128, 64, 8, 3)},
    "mean": {128: _Blocks(128, 64, 4, 3), 256: _Blocks(128, 64, 8, 3)},
    "weight": {128: _Blocks(64, 128, 4, 3), 256: _Blocks(64, 64, 4, 2)},
}
# Programs for each of the device's processors.
_PROGRAMS = 2
_JOINED_ROWS = 16


def _meta(kernel: str, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Block sizes that keep a block of rows, a block of words and a sum in registers."""
    padded = max(16, triton.next_power_of_2(width))
    if dtype == torch.float32:
        blocks = _Blocks(32, 32, 4, 2) if padded <= 128 else _Blocks(16, 16, 8, 2)
    else:
        fitting = [found for widest, found in _BLOCKS[kernel].items() if padded <= widest]
        blocks = fitting[0] if fitting else _Blocks(32, 32, 8, 2)
    return {
        "ROWS": blocks.rows,
        "WORDS": blocks.words,
        "WIDTH": padded,
        "EXACT": padded == width,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",  # only float32 asks which
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }


def _num_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # the interpreter, which runs them one after the other
    return _PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


class _Active(NamedTuple):
    """Active rows, moved to the front; everything stays on the device."""

    order_N: Tensor
    number: Tensor
    hidden_NE: Tensor

    @classmethod
    def of(cls, hidden_NE: Tensor, active_N: Tensor) -> _Active:
        ahead_N = active_N.cumsum(0)
        count = active_N.sum(dtype=torch.int32).view(1)
        behind_N = count + (~active_N).cumsum(0)
        places_N = torch.where(active_N, ahead_N, behind_N) - 1
        order_N = torch.empty_like(places_N)
        order_N.scatter_(0, places_N, torch.arange(len(places_N), device=places_N.device))
        return cls(order_N, count, hidden_NE[order_N])


class _OfRows(NamedTuple):
    """In the order of the tokens, 0 where not active."""

    nll_N: Tensor
    lse_N: Tensor
    d_hidden_NE: Tensor
    """Empty unless asked for."""


def _of_rows(
    active: _Active,
    weight_VE: Tensor,
    targets_N: Tensor,
    with_mean: bool,
    grad_N: Tensor | None = None,
    whole_lse_N: Tensor | None = None,
) -> _OfRows:
    """nll and log-sum-exp and, `with_mean`, the gradient of hidden, times that of nll if given.

    `whole_lse_N` is the log-sum-exp of a softmax of which these words are a part.
    """
    kernel = "mean" if with_mean else "lse"
    hidden_NE, device = active.hidden_NE, active.hidden_NE.device
    num_rows, width = hidden_NE.shape
    meta = _meta(kernel, width, hidden_NE.dtype)
    programs = _num_programs(device)
    # Going from segment to segment, the number of the program or that of the block of rows grows,
    # so that their sum tells all segments apart.
    num_segments = programs + triton.cdiv(num_rows, meta["ROWS"])
    lse_SR = torch.empty(num_segments, meta["ROWS"], device=device)
    mean_SRE = torch.empty(*lse_SR.shape, width if with_mean else 0, device=device)
    sizes = len(weight_VE), width
    rows_kernel[(programs,)](
        *(hidden_NE, weight_VE, active.number, lse_SR, mean_SRE, *sizes),
        WITH_MEAN=with_mean,
        **meta,
    )
    targets_N = targets_N.contiguous()
    nll_N = torch.empty(num_rows, device=device)
    lse_N = torch.empty_like(nll_N)
    d_hidden_NE = torch.empty_like(hidden_NE if with_mean else mean_SRE[0, :0])
    if num_rows:
        join_kernel[(triton.cdiv(num_rows, _JOINED_ROWS),)](
            *(lse_SR, mean_SRE, hidden_NE, weight_VE, active.order_N, active.number, targets_N),
            *(nll_N if grad_N is None else grad_N, nll_N if whole_lse_N is None else whole_lse_N),
            *(nll_N, lse_N, d_hidden_NE, num_rows, *sizes, programs),
            ROWS=meta["ROWS"],
            WORDS=meta["WORDS"],
            WIDTH=meta["WIDTH"],
            SOME=_JOINED_ROWS,
            WITH_MEAN=with_mean,
            WITH_GRAD=grad_N is not None,
            IS_PART=whole_lse_N is not None,
            num_warps=4,
        )
    return _OfRows(nll_N, lse_N, d_hidden_NE)


def _of_weights(
    active: _Active,
    weight_VE: Tensor,
    targets_N: Tensor,
    lse_N: Tensor,
    grad_N: Tensor | None = None,
) -> Tensor:
    """The gradient of the weights; without `grad_N` that of the sum of all rows, not rounded."""
    hidden_NE, order_N = active.hidden_NE, active.order_N
    meta = _meta("weight", hidden_NE.shape[1], hidden_NE.dtype)
    dtype = torch.float32 if grad_N is None else weight_VE.dtype
    d_weight_VE = torch.empty_like(weight_VE, dtype=dtype)
    lse_N = lse_N[order_N]
    weight_gradient_kernel[(triton.cdiv(len(weight_VE), meta["WORDS"]),)](
        *(hidden_NE, weight_VE, targets_N[order_N], lse_N),
        lse_N if grad_N is None else grad_N[order_N],
        *(d_weight_VE, active.number, *weight_VE.shape),
        WITH_GRAD=grad_N is not None,
        **meta,
    )
    return d_weight_VE


def forward(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    """nll_N and the log-sum-exp of every row, both 0 where not active."""
    active = _Active.of(hidden_NE, active_N)
    rows = _of_rows(active, weight_VE.contiguous(), targets_N, with_mean=False)
    return rows.nll_N, rows.lse_N


def backward(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of hidden and weight; `lse_N` may be over more words than these."""
    active, weight_VE = _Active.of(hidden_NE, active_N), weight_VE.contiguous()
    grad_N, lse_N = grad_N.float().contiguous(), lse_N.contiguous()
    rows = _of_rows(active, weight_VE, targets_N, True, grad_N, lse_N)
    return rows.d_hidden_NE, _of_weights(active, weight_VE, targets_N, lse_N, grad_N)


def sum_and_gradients(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed nll of the active rows and its gradients by hidden and, not rounded, by weight."""
    active, weight_VE = _Active.of(hidden_NE, active_N), weight_VE.contiguous()
    rows = _of_rows(active, weight_VE, targets_N, with_mean=True)
    d_weight_VE = _of_weights(active, weight_VE, targets_N, rows.lse_N)
    return rows.nll_N.sum(), rows.d_hidden_NE, d_weight_VE


linear_nll: Nll = nll_operator("linear_nll_triton", forward, backward)
"""The same as `reference.linear_nll`, at a cost in proportion to the active rows."""
linear_nll_sum: Nll = nll_sum_operator("linear_nll_sum_triton", sum_and_gradients)
"""Its sum over all rows, with a gradient at the price of four products instead of five."""
