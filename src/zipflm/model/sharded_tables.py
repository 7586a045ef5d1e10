"""Tables of words whose rows are spread over the processes: none holds all of one.

The processes split the words among them and the batch as well: each has tokens of its own and rows
of its own, so for every table the tokens must come to the rows.

    Input     The ids of all processes are gathered. Each process looks up the rows it owns, and
              has zeros elsewhere; the sum over the processes is the vector of every token, of
              which each gets its own tokens back. All that travels is as narrow as the bands:
              projections are replicated and come afterwards.
    Output    Hidden vectors, projected to the width of a band, are gathered. Each process computes
              log-sum-exps over its own rows and the logits of the targets it owns
              (`kernels.linear_nll_part`); two numbers per token and process go back to the token's
              process, which makes nll of them.

The backward pass is the transpose: gathered gradients and summed shares. A process then has the
whole gradient of its own rows, over the tokens of all processes; nothing more is exchanged. Results
are those of one process, up to the order in which floats are added.

A process may have fewer tokens than another, or none that is scored: all are padded to the largest
number, which the hosts tell each other, so that no device is waited for. Rows are cut as
`torch.chunk` cuts them, so the last processes may have fewer, or none. The rows of the classes in
an adaptive softmax are spread like words.

For an update of T tokens, over all P processes, each process sends, and receives, (P - 1) / P times

    2 T x F x s     bytes of looked-up vectors and their gradients
    2 T x E x s     bytes of hidden vectors and their gradients, for each band of the output
    T x (16 + 16B)  bytes besides: ids and targets (8 each), and for each of the B bands of the
                    output two statistics, a log-sum-exp and a gradient (4 each)

where s is the size of a number in the products' dtype. This depends neither on P nor on the number
of words. (The gradients of replicated tables cost each process about twice their size instead.)
What it takes in memory are the vectors of all tokens that the processes have at a time.

Shapes: N tokens of this process, M tokens padded to the most that a process has, A = P x M tokens
of all processes, E width of a band, F width of all bands together, V rows of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F

from zipflm.kernels import Impl, Rows, autocast, linear_nll_sum, statistics_dtype
from zipflm.kernels.linear_nll_part import part_gradients, part_statistics
from zipflm.model.inputs import AdaptiveEmbedding, FixedEmbedding
from zipflm.model.outputs import AdaptiveSoftmax, FullSoftmax

_LAYERS = FixedEmbedding | AdaptiveEmbedding | FullSoftmax | AdaptiveSoftmax
_TABLES = ("table", "embeddings", "clusters")
"""Names of what has one row per word or class, in input and output layers."""

# torch 2.13 renames it; 2.11 knows only the old name.
_all_gather: Callable[..., object] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)


class TableShards:
    """The processes that share the rows of a model's tables, as one of them sees it.

    The layers ask it instead of their tables. Every process must ask for the same, in the same
    order, but each with its own tokens.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        """`mesh` has one dimension; its processes can exchange tensors of their devices and of the
        CPU (`init_process_group("cpu:gloo,cuda:nccl")`)."""
        self._mesh, self._group = mesh, mesh.get_group()
        self.rank: int = mesh.get_local_rank()
        self.size: int = mesh.size()

    def shard(self, table: Tensor) -> DTensor:
        """This process's rows of a table that every process has, as a part of the whole."""
        first, end = self.rows(len(table))
        return DTensor.from_local(
            table[first:end].clone(),
            self._mesh,
            (Shard(0),),
            run_check=False,
            shape=table.shape,
            stride=table.stride(),
        )

    def rows(self, num_rows: int) -> tuple[int, int]:
        """The first of this process's rows of so many, and the one behind the last."""
        most = -(-num_rows // self.size)
        first = min(self.rank * most, num_rows)
        return first, min(first + most, num_rows)

    def look_up(
        self,
        words: Tensor,
        tables: Sequence[Tensor],
        edges: Sequence[int],
        padding_idx: int | None,
    ) -> Tensor:
        """The rows of this process's words [...], side by side for all tables: [..., F].

        `edges` has the id of every table's first row; where a word is in none of a table's rows
        there are zeros. `padding_idx`, a word of the first table, learns nothing.
        """
        words_A = self._of_all(words.reshape(-1))
        slices = []
        for table, edge in zip(tables, edges, strict=False):
            first = edge + self.rows(len(table))[0]
            local_VE = _local(table)
            place_A = words_A - first
            here_A = (place_A >= 0) & (place_A < len(local_VE))
            # Something to look up even where there is nothing, so that all have a gradient.
            rows_VE = local_VE if len(local_VE) else F.pad(local_VE, (0, 0, 0, 1))
            padding = None if padding_idx is None else padding_idx - first
            if padding is not None and not 0 <= padding < len(local_VE):
                padding = None
            # In the precision in which the product behind would take them.
            rows_AE = autocast(F.embedding(place_A.where(here_A, 0), rows_VE, padding))
            slices.append(rows_AE.masked_fill(~here_A.unsqueeze(1), 0.0))
        shares_AF = torch.cat(slices, dim=1)
        vectors_MF: Tensor = _SumOfOwn.apply(shares_AF, self)  # type: ignore[no-untyped-call]
        vectors_NF = vectors_MF[: words.numel()]
        return vectors_NF.view(*words.shape, vectors_NF.shape[1])

    def scoring(
        self, nll: Callable[..., Tensor], targets_N: Tensor, scored_N: Tensor
    ) -> tuple[Callable[..., Tensor], Tensor, Tensor]:
        """`linear_nll`, or `linear_nll_sum`, for tables in parts; targets and mask of all tokens.

        The function takes this process's hidden vectors, the table of a softmax, or several that
        follow each other in it, and targets and mask of all processes. It gives the nll of this
        process's tokens, or their sum.
        """
        targets_A = self._of_all(targets_N.where(scored_N, -1))

        def of_parts(
            hidden_NE: Tensor,
            table: Tensor | tuple[Tensor, ...],
            targets_A: Tensor,
            active_A: Tensor,
            impl: Impl,
            *,
            rows: Rows = "most",
        ) -> Tensor:
            hidden_NE = autocast(hidden_NE)
            tables = (table,) if isinstance(table, Tensor) else table
            own_A = self._own_targets(tables, targets_A)
            weights = [_local(each).to(hidden_NE.dtype) for each in tables]
            nll_N: Tensor = _Nll.apply(  # type: ignore[no-untyped-call]
                hidden_NE, own_A, active_A, self, impl, rows, *weights
            )
            return nll_N.sum() if nll is linear_nll_sum else nll_N

        return of_parts, targets_A.clamp(min=0), targets_A >= 0

    def _own_targets(self, tables: Sequence[Tensor], targets_A: Tensor) -> Tensor:
        """Which of this process's rows a target is, all tables one after the other; -1 if none."""
        own_A, num_rows, num_own = torch.full_like(targets_A, -1), 0, 0
        for table in tables:
            first, end = (num_rows + row for row in self.rows(len(table)))
            here_A = (targets_A >= first) & (targets_A < end)
            own_A = (targets_A - first + num_own).where(here_A, own_A)
            num_rows, num_own = num_rows + len(table), num_own + end - first
        return own_A

    def _of_all(self, ids_N: Tensor) -> Tensor:
        """The ids of all processes [A], -1 where a process has fewer than another."""
        most = torch.tensor(len(ids_N))  # on the CPU: no device is waited for
        dist.all_reduce(most, dist.ReduceOp.MAX, self._group)
        return self.gather(F.pad(ids_N, (0, int(most) - len(ids_N)), value=-1))

    def gather(self, own: Tensor) -> Tensor:
        """[M, ...] of every process, one after the other: [A, ...]."""
        gathered = own.new_empty(self.size * len(own), *own.shape[1:])
        _all_gather(gathered, own.contiguous(), group=self._group)
        return gathered

    def sum_of_own(self, shares: Tensor) -> Tensor:
        """[A, ...] of every process added up, of which this process gets its own [M, ...]."""
        of_each = self.exchange(shares.reshape(self.size, -1, *shares.shape[1:]))
        # As much is sent as by a reduce-scatter, which would round once for every process.
        return of_each.sum(0, dtype=statistics_dtype(shares.dtype)).to(shares.dtype)

    def exchange(self, for_each: Tensor) -> Tensor:
        """[P, ...], the p-th of which is for process p; in its place comes the one from there."""
        for_each = for_each.contiguous()
        received = torch.empty_like(for_each)
        dist.all_to_all_single(received, for_each, group=self._group)
        return received


def shard_tables(model: nn.Module, shards: TableShards) -> list[str]:
    """Leave each process its own rows of every table of words in a model; the names of these
    parameters, which are parts from now on.

    Layers without such a table, as the one that spells words, stay as they are.
    """
    sharded = []
    for path, layer in list(model.named_modules()):
        if not isinstance(layer, _LAYERS):
            continue
        layer.table_shards = shards
        for name, table in list(layer.named_parameters()):
            if name.split(".")[0] not in _TABLES:
                continue
            owner, _, own_name = name.rpartition(".")
            part = nn.Parameter(shards.shard(table.detach()), table.requires_grad)
            layer.get_submodule(owner).register_parameter(own_name, part)
            sharded.append(f"{path}.{name}")
    return sharded


class _SumOfOwn(torch.autograd.Function):
    """`TableShards.sum_of_own`, whose transpose is `gather`."""

    @staticmethod
    def forward(ctx: Any, shares: Tensor, shards: TableShards) -> Tensor:
        ctx.shards = shards
        return shards.sum_of_own(shares)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shards.gather(grad), None


class _Nll(torch.autograd.Function):
    """nll of this process's tokens under a softmax over the rows of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NE: Tensor,
        targets_A: Tensor,
        active_A: Tensor,
        shards: TableShards,
        impl: Impl,
        rows: Rows,
        *weights: Tensor,
    ) -> Tensor:
        weight_VE = weights[0] if len(weights) == 1 else torch.cat(weights)
        num_tokens, most = len(hidden_NE), len(targets_A) // shards.size
        hidden_AE = shards.gather(_padded(hidden_NE, most))
        statistics = part_statistics(hidden_AE, weight_VE, targets_A, active_A, impl, rows=rows)
        lse_PM, target_PM = shards.exchange(
            torch.stack([each.view(shards.size, most) for each in statistics], dim=1)
        ).unbind(1)
        lse_M = lse_PM.logsumexp(0)
        active_M = active_A.view(shards.size, most)[shards.rank]
        nll_M = (lse_M - target_PM.sum(0)).where(active_M, 0.0)
        if any(ctx.needs_input_grad):
            lse_A = shards.gather(lse_M)
            ctx.save_for_backward(hidden_AE, weight_VE, targets_A, active_A, lse_A)
            ctx.sizes = num_tokens, [len(weight) for weight in weights]
            ctx.how = shards, impl, rows
        return nll_M[:num_tokens]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        (num_tokens, sizes), (shards, impl, rows) = ctx.sizes, ctx.how
        hidden_AE, weight_VE, targets_A, active_A, lse_A = ctx.saved_tensors
        grad_A = shards.gather(_padded(grad_N, len(lse_A) // shards.size))
        d_hidden_AE, d_weight_VE = part_gradients(
            grad_A, hidden_AE, weight_VE, targets_A, active_A, lse_A, impl, rows=rows
        )
        d_hidden_NE = shards.sum_of_own(d_hidden_AE)[:num_tokens]
        first, *others = torch.split(d_weight_VE, sizes)
        # A part of the whole would keep all of it in memory; these are few rows.
        copies = [other.clone() for other in others]
        return d_hidden_NE, None, None, None, None, None, first, *copies


def _local(table: Tensor) -> Tensor:
    """This process's rows, through which gradients reach them."""
    assert isinstance(table, DTensor)
    return table.to_local()


def _padded(own: Tensor, length: int) -> Tensor:
    """Zeros behind, up to this length."""
    return F.pad(own, (0, 0) * (own.ndim - 1) + (0, length - len(own)))
