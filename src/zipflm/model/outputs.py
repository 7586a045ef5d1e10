"""Output layers: map hidden vectors and targets to per-token negative log-likelihoods (nll).

nll is in nats and float32 (float64 for float64 input). Except in the reference implementation,
computing it never materializes the full [N, V] logits of a large batch. Tied weights belong to the
input layer; a tied output layer reads them from there and does not register them, so each is stored
once.

Shapes: ... any leading dimensions, N flattened tokens, D model width, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zipflm.kernels import Impl, checked_ids, linear_nll, linear_nll_sum, statistics_dtype
from zipflm.model import initialization
from zipflm.model.initialization import Fill
from zipflm.model.inputs import AdaptiveEmbedding, FixedEmbedding, TableLayer

NllOp = Callable[..., Tensor]
"""`linear_nll` or `linear_nll_sum`."""


class OutputLayer(TableLayer):
    """Base class of output layers."""

    in_dim: int
    unknown_id: int | None = None
    """Id that replaces targets beyond the vocabulary. If None, such targets raise an error."""

    @property
    def edges(self) -> tuple[int, ...]:
        """First id of every band, then the vocabulary size."""
        raise NotImplementedError

    def nll(self, hidden: Tensor, targets: Tensor, scored: Tensor | None = None) -> Tensor:
        """Return -log p(target), shaped like `targets`; 0, with no gradient, where `scored` is
        False."""
        return self._flatten_and_score(linear_nll, hidden, targets, scored).view(targets.shape)

    def nll_sum(self, hidden: Tensor, targets: Tensor, scored: Tensor | None = None) -> Tensor:
        """Return the sum of `nll`, a scalar with a cheaper gradient. Use it for training."""
        return self._flatten_and_score(linear_nll_sum, hidden, targets, scored)

    def _score(self, nll: NllOp, hidden_ND: Tensor, targets_N: Tensor, scored_N: Tensor) -> Tensor:
        raise NotImplementedError

    def _flatten_and_score(
        self, nll: NllOp, hidden: Tensor, targets: Tensor, scored: Tensor | None
    ) -> Tensor:
        """Score one row per token, after checking shapes and targets.

        Tokens that are not scored get target 0 and a vector of zeros, because infinity or NaN in
        their vectors would spread to the gradients of all projections.
        """
        require_width(hidden, self.in_dim)
        if hidden.shape[:-1] != targets.shape:
            raise ValueError(
                f"targets.shape={tuple(targets.shape)}: expected {tuple(hidden.shape[:-1])}, one "
                "target per hidden vector"
            )
        if scored is not None and (scored.shape != targets.shape or scored.dtype != torch.bool):
            raise ValueError(
                f"scored: {scored.dtype} of shape {tuple(scored.shape)}; expected torch.bool of "
                f"shape {tuple(targets.shape)}"
            )
        vocab_size = self.edges[-1]
        if self.unknown_id is not None:
            targets = targets.where(targets < vocab_size, self.unknown_id)
        targets_N = checked_ids("targets", targets, vocab_size, scored).reshape(-1)
        hidden_ND = hidden.reshape(-1, hidden.shape[-1])
        if scored is None:
            scored_N = torch.ones_like(targets_N, dtype=torch.bool)
        else:
            scored_N = scored.reshape(-1)
            hidden_ND = hidden_ND.where(scored_N.unsqueeze(1), 0.0)
        if self.table_shards is not None:
            nll, targets_N, scored_N = self.table_shards.scoring(nll, targets_N, scored_N)
        return self._score(nll, hidden_ND, targets_N, scored_N)


class FullSoftmax(OutputLayer):
    """One softmax over all words, after a bias-free projection if the table's width is not D."""

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        in_dim: int,
        *,
        tied_to: FixedEmbedding | None = None,
        impl: Impl = "auto",
    ):
        super().__init__()
        self.vocab_size: int = vocab_size
        self.in_dim: int = in_dim
        self.impl: Impl = impl
        self._tied_to = (tied_to,)  # in a tuple, so that nn.Module does not register it
        if tied_to is not None and tied_to.table.shape != (vocab_size, dim):
            raise ValueError(
                f"tied_to: its table is {tuple(tied_to.table.shape)}, not {(vocab_size, dim)}; "
                "tie layers of equal vocab_size and dim"
            )
        require_dense_gradients(tied_to)
        self.table: nn.Parameter | None = (
            nn.Parameter(torch.empty(vocab_size, dim)) if tied_to is None else None
        )
        self.projection: nn.Linear | None = (
            nn.Linear(in_dim, dim, bias=False) if dim != in_dim else None
        )
        self.reset_parameters()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        if self.table is not None:
            yield "table", initialization.table()
        if self.projection is not None:
            yield "projection.weight", initialization.xavier_uniform()

    @property
    def weight(self) -> Tensor:
        (tied_to,) = self._tied_to
        table = self.table if tied_to is None else tied_to.table
        assert table is not None
        return table

    def _score(self, nll: NllOp, hidden_ND: Tensor, targets_N: Tensor, scored_N: Tensor) -> Tensor:
        return nll(self._project(hidden_ND), self.weight, targets_N, scored_N, self.impl)

    @property
    def edges(self) -> tuple[int, ...]:
        return (0, self.vocab_size)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word, [..., V]. Unlike `nll`, this keeps V values per hidden vector
        in memory."""
        return log_softmax(F.linear(self._project(hidden), self.weight))

    def _project(self, hidden: Tensor) -> Tensor:
        return hidden if self.projection is None else self.projection(hidden)


def require_dense_gradients(tied_to: FixedEmbedding | AdaptiveEmbedding | None) -> None:
    if tied_to is not None and tied_to.sparse:
        raise ValueError(
            "tied_to: its gradients are sparse, but the output layer's are dense; use "
            "sparse=False, or do not tie the layers"
        )


def require_width(hidden: Tensor, in_dim: int) -> None:
    if hidden.shape[-1] != in_dim:
        raise ValueError(
            f"hidden.shape={tuple(hidden.shape)}: this layer expects vectors of width {in_dim}"
        )


def log_softmax(logits: Tensor) -> Tensor:
    return logits.to(statistics_dtype(logits.dtype)).log_softmax(dim=-1)
