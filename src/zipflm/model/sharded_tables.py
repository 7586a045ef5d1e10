"""Word tables whose rows are sharded over processes.

Each process has different tokens and different rows of every table.

    Input     The ids of all processes are gathered. Each process looks up those in its shard, with
              zeros for the others; a reduce-scatter gives each process the vectors of its tokens.
              Projections are replicated and applied afterwards.
    Output    Hidden vectors, projected to the width of a band, are gathered. Each process computes
              log-sum-exps over its rows, and the logits of targets among them. It sends these two
              numbers per token back to the token's process, which computes nll from them.

The backward pass is the transpose of this. It gives each process the complete gradient of its
rows over the tokens of all processes, so no further exchange is needed. Results equal those of one
process up to the order of float additions.

Processes may have different numbers of tokens, or none. All pad to the largest number, which the
hosts exchange without waiting for a device. Rows are split as by `torch.chunk`, so the last
processes may have fewer or none. The head's vectors for tail bands are sharded like words.

For an update of T tokens over all P processes, each process sends and receives (P - 1) / P times

    2 T x F x s     bytes of looked-up vectors and their gradients
    2 T x E x s     bytes of hidden vectors and their gradients, for each band of the output
    T x (16 + 16B)  bytes of ids and targets (8 each) and, for each of the B bands of the output,
                    four numbers (4 each): two statistics, the full log-sum-exp, a gradient

where s is the size of an element in the dtype of matrix products. The sum does not depend on P or
on the number of words. (With replicated tables, each process would send about twice the size of
their gradients instead.) Each process holds the vectors of the tokens of all processes in memory.

Shapes: N tokens of this process, M tokens after padding, A = P x M tokens of all processes, E width
of a band, F width of all bands together, V rows of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional as F

from zipflm.kernels import (
    Impl,
    Rows,
    cast_for_matmul,
    choose_kernels,
    linear_nll_sum,
    statistics_dtype,
)
from zipflm.model.inputs import TableLayer

_TABLES = ("table", "embeddings", "clusters")
"""Parameters with one row per word or tail band, in input and output layers."""

# Renamed in torch 2.13.
_all_gather: Callable[..., object] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)


class TableShards:
    """Lookups and scoring in tables whose rows are sharded over the processes of a mesh.

    All processes must make the same calls in the same order, each with different tokens.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        """`mesh` has one dimension and supports collectives on the device and on the CPU
        (`init_process_group("cpu:gloo,cuda:nccl")`)."""
        self._mesh, self._group = mesh, mesh.get_group()
        self.rank: int = mesh.get_local_rank()
        self.size: int = mesh.size()

    def shard(self, table: Tensor) -> Tensor:
        """Return this process's rows of a replicated table, as a `DTensor`."""
        # A clone, because a view would keep the whole table in memory.
        return distribute_tensor(table, self._mesh, [Shard(0)], src_data_rank=None).clone()

    def rows(self, num_rows: int) -> tuple[int, int]:
        """Return the start and end of this process's rows in a table of `num_rows`."""
        per_process = -(-num_rows // self.size)
        first = min(self.rank * per_process, num_rows)
        return first, min(first + per_process, num_rows)

    def lookup(
        self,
        words: Tensor,
        tables: Sequence[Tensor],
        edges: Sequence[int],
        padding_idx: int | None,
    ) -> Tensor:
        """Look up this process's words [...] in all tables. Return [..., F], concatenated.

        `edges` has the id of the first row of every table. A table that does not contain a word
        contributes zeros. `padding_idx`, an id in the first table, gets no gradient.
        """
        words_A = self._gather_ids(words.reshape(-1))
        slices = []
        for table, edge in zip(tables, edges, strict=False):
            first = edge + self.rows(len(table))[0]
            local_VE = _local(table)
            index_A = words_A - first
            is_local_A = (index_A >= 0) & (index_A < len(local_VE))
            # An empty shard gets a row to look up, so that every process has a gradient.
            rows_VE = local_VE if len(local_VE) else F.pad(local_VE, (0, 0, 0, 1))
            padding = None if padding_idx is None else padding_idx - first
            if padding is not None and not 0 <= padding < len(local_VE):
                padding = None
            # In the precision that the projection would cast them to.
            rows_AE = cast_for_matmul(F.embedding(index_A.where(is_local_A, 0), rows_VE, padding))
            slices.append(rows_AE.masked_fill(~is_local_A.unsqueeze(1), 0.0))
        partial_AF = torch.cat(slices, dim=1)
        vectors_MF: Tensor = _ReduceScatter.apply(partial_AF, self)  # type: ignore[no-untyped-call]
        vectors_NF = vectors_MF[: words.numel()]
        return vectors_NF.view(*words.shape, vectors_NF.shape[1])

    def scoring(
        self, nll: Callable[..., Tensor], targets_N: Tensor, scored_N: Tensor
    ) -> tuple[Callable[..., Tensor], Tensor, Tensor]:
        """Return `linear_nll` or `linear_nll_sum` for sharded tables, and the targets and mask of
        all processes.

        The function takes this process's hidden vectors, the table of a softmax (or several, to be
        concatenated), and the targets and mask of all processes. It returns the nll of this
        process's tokens, or their sum.
        """
        targets_A = self._gather_ids(targets_N.where(scored_N, -1))

        def sharded_nll(
            hidden_NE: Tensor,
            table: Tensor | tuple[Tensor, ...],
            targets_A: Tensor,
            active_A: Tensor,
            impl: Impl,
            *,
            rows: Rows = "most",
        ) -> Tensor:
            hidden_NE = cast_for_matmul(hidden_NE)
            kernels = choose_kernels(hidden_NE, "auto", rows)  # the reference has no shards
            tables = (table,) if isinstance(table, Tensor) else table
            local_A = self._local_targets(tables, targets_A)
            weights = [_local(table).to(hidden_NE.dtype) for table in tables]
            nll_N: Tensor = _Nll.apply(  # type: ignore[no-untyped-call]
                hidden_NE, local_A, active_A, self, kernels, *weights
            )
            return nll_N.sum() if nll is linear_nll_sum else nll_N

        return sharded_nll, targets_A.clamp(min=0), targets_A >= 0

    def _local_targets(self, tables: Sequence[Tensor], targets_A: Tensor) -> Tensor:
        """Map targets to rows of this process's concatenated shards, or -1 for other processes."""
        local_A, num_rows, num_local = torch.full_like(targets_A, -1), 0, 0
        for table in tables:
            first, end = (num_rows + row for row in self.rows(len(table)))
            is_local_A = (targets_A >= first) & (targets_A < end)
            local_A = (targets_A - first + num_local).where(is_local_A, local_A)
            num_rows, num_local = num_rows + len(table), num_local + end - first
        return local_A

    def _gather_ids(self, ids_N: Tensor) -> Tensor:
        """Gather the ids of all processes [A], padded with -1."""
        longest = torch.tensor(len(ids_N))  # on the CPU, to avoid a device synchronization
        dist.all_reduce(longest, dist.ReduceOp.MAX, self._group)
        return self.gather(F.pad(ids_N, (0, int(longest) - len(ids_N)), value=-1))

    def gather(self, local: Tensor) -> Tensor:
        """Concatenate [M, ...] of every process to [A, ...]."""
        gathered = local.new_empty(self.size * len(local), *local.shape[1:])
        _all_gather(gathered, local.contiguous(), group=self._group)
        return gathered

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        """Sum [A, ...] over all processes. Each process gets the [M, ...] of its tokens."""
        received = self.all_to_all(partial.reshape(self.size, -1, *partial.shape[1:]))
        # Sends as much as torch's reduce-scatter, which would round once for every process.
        return received.sum(0, dtype=statistics_dtype(partial.dtype)).to(partial.dtype)

    def all_to_all(self, chunks: Tensor) -> Tensor:
        """Send `chunks[p]` to process p. Entry p of the result comes from process p."""
        chunks = chunks.contiguous()
        received = torch.empty_like(chunks)
        dist.all_to_all_single(received, chunks, group=self._group)
        return received


def shard_tables(model: nn.Module, shards: TableShards) -> list[str]:
    """Replace every word table of a model with this process's shard. Return the table names.

    Layers without such a table, like `CharacterEmbedding`, are not changed.
    """
    sharded = []
    for path, layer in list(model.named_modules()):
        if not isinstance(layer, TableLayer):
            continue
        layer.table_shards = shards
        for name, table in list(layer.named_parameters()):
            if name.split(".")[0] not in _TABLES:
                continue
            owner, _, local_name = name.rpartition(".")
            shard = nn.Parameter(shards.shard(table.detach()), table.requires_grad)
            layer.get_submodule(owner).register_parameter(local_name, shard)
            sharded.append(f"{path}.{name}")
    return sharded


class _ReduceScatter(torch.autograd.Function):
    """`TableShards.reduce_scatter`, whose transpose is `gather`."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, shards: TableShards) -> Tensor:
        ctx.shards = shards
        return shards.reduce_scatter(partial)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shards.gather(grad), None


def shard_statistics(
    kernels: ModuleType,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of every row over the words of this shard, and its target's logit.

    A target of -1 is a word of another shard; its logit is 0 here. Values of inactive rows are
    arbitrary. Every log-sum-exp of an empty shard is minus infinity.
    """
    if len(weight_VE) == 0:
        zeros_N = hidden_NE.new_zeros(len(hidden_NE), dtype=statistics_dtype(hidden_NE.dtype))
        return zeros_N - torch.inf, zeros_N
    nll_N, lse_N = kernels.forward(hidden_NE, weight_VE, targets_N.clamp(min=0), active_N)
    return lse_N, (lse_N - nll_N).where(targets_N >= 0, 0.0)


def shard_gradients(
    kernels: ModuleType,
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return this shard's contribution to the gradient of hidden, and the gradient of its weights.

    `grad_N` is the gradient of the nll, `lse_N` the log-sum-exp over the words of all shards. A
    target of -1 is a word of another shard.
    """
    if len(weight_VE) == 0:
        return torch.zeros_like(hidden_NE), torch.zeros_like(weight_VE)
    gradients: tuple[Tensor, Tensor] = kernels.backward(
        grad_N, hidden_NE, weight_VE, targets_N, active_N, lse_N
    )
    return gradients


class _Nll(torch.autograd.Function):
    """nll of this process's tokens under a softmax over the rows of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NE: Tensor,
        targets_A: Tensor,
        active_A: Tensor,
        shards: TableShards,
        kernels: ModuleType,
        *weights: Tensor,
    ) -> Tensor:
        weight_VE = weights[0] if len(weights) == 1 else torch.cat(weights)
        num_tokens, padded = len(hidden_NE), len(targets_A) // shards.size
        hidden_AE = shards.gather(_pad(hidden_NE, padded))
        statistics = shard_statistics(kernels, hidden_AE, weight_VE, targets_A, active_A)
        lse_PM, target_PM = shards.all_to_all(
            torch.stack([values.view(shards.size, padded) for values in statistics], dim=1)
        ).unbind(1)
        lse_M = lse_PM.logsumexp(0)
        active_M = active_A.view(shards.size, padded)[shards.rank]
        nll_M = (lse_M - target_PM.sum(0)).where(active_M, 0.0)
        if any(ctx.needs_input_grad):
            lse_A = shards.gather(lse_M)
            ctx.save_for_backward(hidden_AE, weight_VE, targets_A, active_A, lse_A)
            ctx.sizes = num_tokens, [len(weight) for weight in weights]
            ctx.shards, ctx.kernels = shards, kernels
        return nll_M[:num_tokens]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        (num_tokens, sizes), shards = ctx.sizes, ctx.shards
        hidden_AE, weight_VE, targets_A, active_A, lse_A = ctx.saved_tensors
        grad_A = shards.gather(_pad(grad_N, len(lse_A) // shards.size))
        d_hidden_AE, d_weight_VE = shard_gradients(
            ctx.kernels, grad_A, hidden_AE, weight_VE, targets_A, active_A, lse_A
        )
        d_hidden_NE = shards.reduce_scatter(d_hidden_AE)[:num_tokens]
        first, *others = torch.split(d_weight_VE, sizes)
        # Views would keep all of d_weight_VE in memory; these have few rows.
        copies = [other.clone() for other in others]
        return d_hidden_NE, None, None, None, None, first, *copies


def _local(table: Tensor) -> Tensor:
    assert isinstance(table, DTensor)
    return table.to_local()


def _pad(local: Tensor, length: int) -> Tensor:
    return F.pad(local, (0, 0) * (local.ndim - 1) + (0, length - len(local)))
