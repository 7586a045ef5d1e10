"""Sparse gradients of tables: which rows they touch, each of them once.

A gradient of a lookup names a row as often as its word is in the batch. Norms and momentum need the
sum for every row. How many rows that makes is unknown to the host, and asking would wait for the
device: there the result has as many rows as the gradient has entries, and repeats the first.

Shapes: N entries of a gradient, E width of a table.
"""

from __future__ import annotations

import torch
from torch import Tensor


def added_up(grad_VE: Tensor) -> Tensor:
    """The same sparse gradient, in which every row has one entry that may be other than 0."""
    return _added_up_without_waiting(grad_VE) if grad_VE.is_cuda else grad_VE.coalesce()


def values(grad: Tensor) -> Tensor:
    """The numbers of a gradient of `added_up`, or all numbers of one that is not sparse: their
    norm is that of the gradient."""
    return grad._values() if grad.is_sparse else grad


def touched(grad_VE: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [N] of a gradient of `added_up` and what belongs to them, [N, E].

    A row may come again, with the same numbers, so that writing what follows from them twice does
    no harm.
    """
    rows_N, grads_NE = grad_VE._indices()[0], grad_VE._values()
    if grad_VE.is_coalesced():
        return rows_N, grads_NE
    places_N = torch.arange(len(rows_N), device=rows_N.device)
    sources_N = torch.where(rows_N == rows_N[:1], 0, places_N)  # only padding repeats the first
    return rows_N, grads_NE[sources_N]


def _added_up_without_waiting(grad_VE: Tensor) -> Tensor:
    rows_N, sums_NE = _sums_by_row(grad_VE._indices()[0], grad_VE._values())
    return torch.sparse_coo_tensor(
        rows_N.unsqueeze(0), sums_NE, grad_VE.shape, check_invariants=False, is_coalesced=False
    )


def _sums_by_row(named_N: Tensor, entries_NE: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows among those named and the sum of the entries of each; then, as often as
    needed, the first row again with 0."""
    number = len(named_N)
    sorted_N, order_N = named_N.sort()
    is_first_N = torch.ones_like(sorted_N, dtype=torch.bool)
    is_first_N[1:] = sorted_N[1:] != sorted_N[:-1]
    # Which of the distinct rows, counted from the smallest.
    place_N = is_first_N.cumsum(0) - 1
    rows_N = sorted_N[:1].expand(number).clone().scatter_(0, place_N, sorted_N)
    place_of_entry_N = torch.empty_like(place_N).scatter_(0, order_N, place_N)
    # As the gradient of a lookup in a table of so many rows, which is torch's own sum by row.
    sums_NE: Tensor = torch.ops.aten.embedding_dense_backward(
        entries_NE, place_of_entry_N, number, -1, False
    )
    return rows_N, sums_NE
