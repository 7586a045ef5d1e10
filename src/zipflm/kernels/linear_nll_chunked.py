"""Cross-entropy of a linear layer in chunks of rows, without materializing all logits.

nll_n = log sum_v exp(h_n . w_v) - h_n . w_{t_n}. The backward pass recomputes the logits. For the
sum over all rows, gradients are computed from the logits of the forward pass, which saves one of
four matrix products.

On a CPU inactive rows are skipped. On other devices they are computed and masked, because counting
them would need a synchronization.

Shapes: N tokens, R rows of a chunk, E width, V words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.kernels.operators import Nll, nll_operator, nll_sum_operator
from zipflm.kernels.reference import statistics_dtype

# Logits per chunk: few enough to fit the caches of a CPU, enough to keep a device busy. For large
# vocabularies, a chunk has at least _DEVICE_ROWS rows, because each chunk adds to the gradient of
# all weights, but not more than _MAX_DEVICE_LOGITS logits.
_CPU_LOGITS = 1 << 22
_DEVICE_LOGITS = 1 << 27
_DEVICE_ROWS = 2048
_MAX_DEVICE_LOGITS = 1 << 29
# GPUs reach full speed only if the sizes of matrices are multiples of this.
_ALIGNMENT = 128
# In elements: 64 bytes of float32.
_CPU_ALIGNMENT = 16


def forward(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return nll_N and the log-sum-exp of every row, both 0 for inactive rows."""
    dtype = statistics_dtype(hidden_NE.dtype)
    nll_N = torch.zeros(len(hidden_NE), dtype=dtype, device=hidden_NE.device)
    lse_N = torch.zeros_like(nll_N)
    num_words = len(weight_VE)
    hidden_NE, weight_VE = _zero_inactive(hidden_NE, active_N), _pad_words(weight_VE)
    for rows in _row_chunks(active_N, len(weight_VE)):
        logits_RV = _logits(hidden_NE[rows], weight_VE)
        lse_R = _lse(logits_RV, num_words)
        lse_N[rows] = lse_R
        nll_N[rows] = lse_R - logits_RV.gather(1, targets_N[rows].unsqueeze(1)).squeeze(1)
    return nll_N.where(active_N, 0.0), lse_N.where(active_N, 0.0)


def backward(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of hidden and weight."""
    grad_N = grad_N.where(active_N, 0.0)
    num_words = len(weight_VE)
    hidden_NE, weight_VE = _zero_inactive(hidden_NE, active_N), _pad_words(weight_VE)
    d_hidden_NE = hidden_NE.new_zeros(hidden_NE.shape)
    d_weight_VE = weight_VE.new_zeros(weight_VE.shape, dtype=lse_N.dtype)
    for rows in _row_chunks(active_N, len(weight_VE)):
        hidden_RE = hidden_NE[rows]
        logits_RV = _logits(hidden_RE, weight_VE)
        d_logits_RV = _gradient(
            logits_RV, num_words, lse_N[rows], targets_N[rows], grad_N[rows], hidden_NE.dtype
        )
        d_hidden_NE[rows] = d_logits_RV @ weight_VE
        d_weight_VE += d_logits_RV.T @ hidden_RE
    return d_hidden_NE, d_weight_VE[:num_words].to(weight_VE.dtype)


def sum_and_gradients(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed nll of the active rows, and the gradients of hidden and weight, the latter
    in `statistics_dtype`."""
    if _has_exponential_kernels(hidden_NE):
        return _sum_and_gradients_from_exps(hidden_NE, weight_VE, targets_N, active_N)
    dtype = statistics_dtype(hidden_NE.dtype)
    num_words = len(weight_VE)
    hidden_NE, weight_VE = _zero_inactive(hidden_NE, active_N), _pad_words(weight_VE)
    total = torch.zeros((), dtype=dtype, device=hidden_NE.device)
    d_hidden_NE = hidden_NE.new_zeros(hidden_NE.shape)
    d_weight_VE: Tensor | None = None
    for rows in _row_chunks(active_N, len(weight_VE)):
        hidden_RE, targets_R, active_R = hidden_NE[rows], targets_N[rows], active_N[rows]
        logits_RV = _logits(hidden_RE, weight_VE)
        nll_R, d_logits_RV = _nll_and_gradient(
            logits_RV, num_words, targets_R, active_R, hidden_NE.dtype
        )
        total += nll_R.sum()
        if isinstance(rows, slice):
            torch.mm(d_logits_RV, weight_VE, out=d_hidden_NE[rows])
        else:
            d_hidden_NE[rows] = d_logits_RV @ weight_VE
        d_weight_VE = _accumulate(d_weight_VE, d_logits_RV, hidden_RE, dtype)
    if d_weight_VE is None:  # no rows
        d_weight_VE = weight_VE.new_zeros(weight_VE.shape, dtype=dtype)
    return total, d_hidden_NE, d_weight_VE[:num_words]


def _sum_and_gradients_from_exps(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`sum_and_gradients` without a separate pass over the logits (`softmax_triton.row_exps`)."""
    from zipflm.kernels.softmax_triton import hidden_gradient, row_exps, subtract_targets

    num_words = len(weight_VE)
    hidden_NE = _zero_inactive(hidden_NE, active_N).contiguous()
    weight_VE = _pad_words(weight_VE).contiguous()
    nll_N, miss_N = hidden_NE.new_empty(2, len(hidden_NE), dtype=torch.float32)
    d_hidden_NE = torch.empty_like(hidden_NE)
    d_weight_VE: Tensor | None = None
    for rows in _row_chunks(active_N, len(weight_VE)):
        hidden_RE, targets_R = hidden_NE[rows], targets_N[rows]
        exps = row_exps(hidden_RE, weight_VE, num_words, targets_R, active_N[rows])
        nll_N[rows], miss_N[rows] = exps.nll_R, exps.miss_R
        unscaled_RE = _matmul(exps.exps_RV, weight_VE, torch.float32)
        hidden_gradient(unscaled_RE, exps, weight_VE, targets_R, d_hidden_NE[rows])
        scaled_RE = torch.empty_like(hidden_RE)
        torch.mul(hidden_RE, exps.scale_R.unsqueeze(1), out=scaled_RE)
        d_weight_VE = _accumulate(d_weight_VE, exps.exps_RV, scaled_RE, torch.float32)
    if d_weight_VE is None:  # no rows
        d_weight_VE = weight_VE.new_zeros(weight_VE.shape, dtype=torch.float32)
    else:
        subtract_targets(d_weight_VE, hidden_NE, miss_N, targets_N)
    return nll_N.sum(), d_hidden_NE, d_weight_VE[:num_words]


def _accumulate(
    d_weight_VE: Tensor | None, d_logits_RV: Tensor, hidden_RE: Tensor, dtype: torch.dtype
) -> Tensor:
    """Add the contribution of a chunk to the gradient of the weights, in `dtype`."""
    if d_weight_VE is None:
        return _matmul(d_logits_RV.T, hidden_RE, dtype)
    if hidden_RE.is_cuda and dtype != hidden_RE.dtype:
        # Accumulate inside the product: with few rows a separate pass over the weights would cost
        # as much as the product. `out` avoids a copy of the accumulator.
        torch.addmm(d_weight_VE, d_logits_RV.T, hidden_RE, out_dtype=dtype, out=d_weight_VE)
        return d_weight_VE
    return d_weight_VE.add_(_matmul(d_logits_RV.T, hidden_RE, dtype))


def _matmul(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a product in `dtype`. GPUs accumulate in float32 and can skip rounding the result."""
    if left.is_cuda and dtype != left.dtype:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


def _nll_and_gradient(
    logits_RV: Tensor, num_words: int, targets_R: Tensor, active_R: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the nll of each row and the gradient of the logits, 0 for inactive rows.

    The logits may be overwritten.
    """
    targets_R1 = targets_R.unsqueeze(1)
    if _has_row_kernels(logits_RV):
        lse_R = _lse(logits_RV, num_words)
        nll_R = (lse_R - logits_RV.gather(1, targets_R1).squeeze(1)).where(active_R, 0.0)
        return nll_R, _gradient(logits_RV, num_words, lse_R, targets_R, active_R, dtype)
    # Compute each exponential once, in place: touching new memory takes longer than computing.
    logits_RV[:, num_words:] = -math.inf
    active_R1 = active_R.unsqueeze(1)
    target_R1 = logits_RV.gather(1, targets_R1)
    max_R1 = logits_RV.amax(dim=1, keepdim=True)
    sum_R1 = logits_RV.sub_(max_R1).exp_().sum(dim=1, keepdim=True)
    nll_R1 = sum_R1.log() + max_R1 - target_R1
    logits_RV.mul_(active_R1 / sum_R1).scatter_add_(1, targets_R1, -active_R1.to(sum_R1.dtype))
    return nll_R1.where(active_R1, 0.0).squeeze(1), logits_RV.to(dtype)


def _zero_inactive(hidden_NE: Tensor, active_N: Tensor) -> Tensor:
    """Set inactive rows to 0, because their gradient of 0 times infinity would be NaN."""
    return hidden_NE.where(active_N.unsqueeze(1), 0.0)


def _pad_words(weight_VE: Tensor) -> Tensor:
    """On a GPU, pad the weights with rows of zeros, whose logits must be ignored."""
    if not weight_VE.is_cuda:
        return weight_VE
    return F.pad(weight_VE, (0, 0, 0, -len(weight_VE) % _ALIGNMENT))


def _row_chunks(active_N: Tensor, num_words: int) -> Iterator[Tensor | slice]:
    if active_N.device.type != "cpu":
        min_rows = min(_DEVICE_ROWS, _MAX_DEVICE_LOGITS // num_words)
        max_rows = max(1, min_rows, _DEVICE_LOGITS // num_words)
        # Use chunks of about equal size.
        size = _ceil_div(len(active_N), max(1, _ceil_div(len(active_N), max_rows)))
        size = max(1, _ceil_div(size, _ALIGNMENT)) * _ALIGNMENT
        yield from (slice(start, start + size) for start in range(0, len(active_N), size))
        return
    order = active_N.argsort(descending=True, stable=True)
    size = max(1, _CPU_LOGITS // num_words)
    yield from torch.split(order[: int(active_N.sum())], size)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


@torch.no_grad()  # required by `out`
def _logits(hidden_RE: Tensor, weight_VE: Tensor) -> Tensor:
    dtype = statistics_dtype(hidden_RE.dtype)
    if hidden_RE.device.type == "cpu" and dtype == hidden_RE.dtype:
        # Align rows to 64 bytes: with 2,002 words the product is otherwise 1.5 times slower.
        num_rows, num_words = len(hidden_RE), len(weight_VE)
        padded_RX = hidden_RE.new_empty(num_rows, num_words + -num_words % _CPU_ALIGNMENT)
        return torch.mm(hidden_RE, weight_VE.T, out=padded_RX[:, :num_words])
    return _matmul(hidden_RE, weight_VE.T, dtype)


def _lse(logits_RV: Tensor, num_words: int) -> Tensor:
    if _has_row_kernels(logits_RV):
        from zipflm.kernels.softmax_triton import row_lse

        return row_lse(logits_RV, num_words)
    return logits_RV[:, :num_words].logsumexp(dim=-1)


def _gradient(
    logits_RV: Tensor,
    num_words: int,
    lse_R: Tensor,
    targets_R: Tensor,
    grad_R: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return (softmax - onehot) * grad of each row. `logits_RV` may be overwritten.

    A target of -1 is not one of these words: its onehot row is zero.
    """
    if _has_row_kernels(logits_RV):
        from zipflm.kernels.softmax_triton import row_gradient

        return row_gradient(logits_RV, num_words, lse_R, targets_R, grad_R, dtype)
    logits_RV.sub_(lse_R.unsqueeze(1)).exp_()
    logits_RV[:, num_words:] = 0.0
    minus_one_R = -(targets_R >= 0).to(logits_RV.dtype)
    logits_RV.scatter_add_(1, targets_R.clamp(min=0).unsqueeze(1), minus_one_R.unsqueeze(1))
    return logits_RV.mul_(grad_R.unsqueeze(1)).to(dtype)


def _has_row_kernels(logits_RV: Tensor) -> bool:
    return logits_RV.is_cuda and logits_RV.dtype == torch.float32


def _has_exponential_kernels(hidden_RE: Tensor) -> bool:
    """The kernels need the range of bfloat16, rows whose size is a multiple of 16 bytes, and the
    tensor memory accelerator of Hopper or later."""
    is_supported = hidden_RE.is_cuda and hidden_RE.dtype == torch.bfloat16
    is_supported = is_supported and hidden_RE.shape[1] % 8 == 0 and torch.version.hip is None
    return is_supported and torch.cuda.get_device_capability(hidden_RE.device)[0] >= 9


linear_nll: Nll = nll_operator("linear_nll_chunked", forward, backward)
"""Equivalent to `reference.linear_nll`, in bounded memory."""
linear_nll_sum: Nll = nll_sum_operator("linear_nll_sum_chunked", sum_and_gradients)
"""The sum of `linear_nll` over all rows. Loss and gradients need three matrix products instead of
four."""
