"""Output layers: map hidden vectors and targets to per-token negative log-likelihoods (nll).

nll is in nats and float32 (float64 for float64 input). Scoring targets never materializes the full
[N, V] logits. Tied weights belong to the input layer; a tied output layer reads them from there and
does not register them, so each is stored once.

Shapes: ... any leading dimensions, N flattened tokens, D model width, V words, E width of a band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.types import Device

from zipflm.config import AdaptiveOutput, Tie
from zipflm.kernels import Impl, checked_ids, linear_nll, linear_nll_sum, statistics_dtype
from zipflm.kernels.dropout import dropout
from zipflm.model import initialization
from zipflm.model.bands import Bands
from zipflm.model.initialization import Fill
from zipflm.model.inputs import AdaptiveEmbedding, FixedEmbedding
from zipflm.model.sampling import most_likely

if TYPE_CHECKING:
    from zipflm.model.sharded_tables import TableShards

_Nll = Callable[..., Tensor]
"""`linear_nll` or `linear_nll_sum`."""


class _OutputLayer(nn.Module):
    in_dim: int
    table_shards: TableShards | None = None
    """Set if the rows of the tables are split over processes (`model.sharded_tables`)."""
    unknown_id: int | None = None
    """Id that replaces targets outside the vocabulary; without it they raise an error."""

    @property
    def edges(self) -> tuple[int, ...]:
        """First id of every band, then the vocabulary size."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        initialization.reset(self)

    def nll(self, hidden: Tensor, targets: Tensor, scored: Tensor | None = None) -> Tensor:
        """Return -log p(target), shaped like `targets`; 0, with no gradient, where `scored` is
        False."""
        return self._nll(linear_nll, hidden, targets, scored).view(targets.shape)

    def nll_sum(self, hidden: Tensor, targets: Tensor, scored: Tensor | None = None) -> Tensor:
        """Return the sum of `nll`, a scalar with a cheaper gradient. Use it for training."""
        return self._nll(linear_nll_sum, hidden, targets, scored)

    def _nll(self, nll: _Nll, hidden: Tensor, targets: Tensor, scored: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _flatten(
        self, hidden: Tensor, targets: Tensor, scored: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Flatten to one row per token, after checking shapes and targets.

        Tokens that are not scored get target 0 and a vector of zeros: infinity or NaN in their
        vectors would spread to the gradients of all projections.
        """
        _require_width(hidden, self.in_dim)
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
            return hidden_ND, targets_N, torch.ones_like(targets_N, dtype=torch.bool)
        scored_N = scored.reshape(-1)
        return hidden_ND.where(scored_N.unsqueeze(1), 0.0), targets_N, scored_N


class FullSoftmax(_OutputLayer):
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
        _require_dense_gradients(tied_to)
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

    def _nll(self, nll: _Nll, hidden: Tensor, targets: Tensor, scored: Tensor | None) -> Tensor:
        hidden_ND, targets_N, scored_N = self._flatten(hidden, targets, scored)
        if self.table_shards is not None:
            nll, targets_N, scored_N = self.table_shards.scoring(nll, targets_N, scored_N)
        return nll(self._project(hidden_ND), self.weight, targets_N, scored_N, self.impl)

    @property
    def edges(self) -> tuple[int, ...]:
        return (0, self.vocab_size)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word, [..., V]. Only for small vocabularies."""
        return _log_softmax(F.linear(self._project(hidden), self.weight))

    def _project(self, hidden: Tensor) -> Tensor:
        return hidden if self.projection is None else self.projection(hidden)


class AdaptiveSoftmax(_OutputLayer):
    """A softmax over the head's words and the tail bands, and one softmax per tail band.

    log p(w) is log p(w | head) for a head word and log p(band | head) + log p(w | band) for others
    (Grave et al., 2017, without biases). Calling the layer returns the loss, as with
    `nn.CrossEntropyLoss`:

    >>> bands = Bands(vocab_size=1000, cutoffs=(100, 400), dim=64, factor=4)
    >>> embedding = AdaptiveEmbedding(bands)
    >>> softmax = AdaptiveSoftmax(bands, tied_to=embedding, tie="projections")
    >>> softmax(torch.randn(2, 5, 64), torch.randint(1000, (2, 5))).shape
    torch.Size([])
    """

    def __init__(
        self,
        bands: Bands,
        in_dim: int | None = None,
        *,
        tied_to: AdaptiveEmbedding | None = None,
        tie: Tie | str = Tie.NONE,
        tail_dropout: float | Sequence[float] = 0.0,
        input_dropout: float = 0.0,
        head_projection: bool = False,
        ignore_index: int = -100,
        reduction: Literal["mean", "sum", "none"] = "mean",
        impl: Impl = "auto",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        """`in_dim` is the width of the hidden vectors (default: `bands.dim`). `tie` selects which
        weights of `tied_to` to share: `embeddings`, `projections` (embeddings and tail projections)
        or `head` (all of these and the head's projection). `input_dropout` is applied to the hidden
        vectors, `tail_dropout` (one rate for all tails, or one per tail) to their projections for
        the tails. `head_projection` adds an unshared projection to the head. `impl` selects the
        implementation (see `zipflm.kernels`). `device` and `dtype` apply to weights that are not
        shared."""
        super().__init__()
        self.bands: Bands = bands
        self.tie: Tie = Tie(tie)
        self.impl: Impl = impl
        self.in_dim: int = bands.dim if in_dim is None else in_dim
        self.tail_dropout: float | Sequence[float] = tail_dropout
        self.input_dropout: float = input_dropout
        self.has_head_projection: bool = head_projection
        self.ignore_index: int = ignore_index
        self.reduction: Literal["mean", "sum", "none"] = reduction
        self._tied_to = (tied_to,)  # in a tuple, so that nn.Module does not register it
        self._check()
        self._make_parameters(device, dtype)
        self.reset_parameters()

    @property
    def tail_dropout_rates(self) -> tuple[float, ...]:
        if isinstance(self.tail_dropout, Sequence):
            return tuple(self.tail_dropout)
        return (self.tail_dropout,) * self.bands.num_tails

    def _check(self) -> None:
        (tied_to,) = self._tied_to
        if self.reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction={self.reduction!r}: choose from mean, sum, none")
        # Dropout is checked by the config.
        AdaptiveOutput(
            cutoffs=self.bands.cutoffs,
            dim=self.bands.dim,
            tail_dropout=self.tail_dropout_rates,
            input_dropout=self.input_dropout,
        )
        if self.has_head_projection and self.tie.shares_head_projection:
            raise ValueError(
                "head_projection=True: tie='head' already shares the input's projection; use "
                "tie='projections' or head_projection=False"
            )
        if (tied_to is None) != (self.tie == Tie.NONE):
            raise ValueError(
                f"tie={self.tie.value!r}: tying needs both `tied_to` (the input layer) and `tie` "
                "(embeddings, projections or head)"
            )
        if tied_to is None:
            return
        if tied_to.bands != self.bands or tied_to.out_dim != self.in_dim:
            raise ValueError(
                f"tied_to: its bands {tied_to.bands} and width {tied_to.out_dim} do not match "
                f"{self.bands} and width {self.in_dim}; use the same for both layers"
            )
        _require_dense_gradients(tied_to)
        if not self.tie.shares_head_projection and self.bands.dim != self.in_dim:
            raise ValueError(
                f"tie={self.tie.value!r}: the head is scored without a projection, so bands.dim="
                f"{self.bands.dim} must equal in_dim={self.in_dim}; or use tie='head'"
            )

    def _make_parameters(self, device: Device, dtype: torch.dtype | None) -> None:
        bands, tie = self.bands, self.tie

        def parameter(rows: int, width: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(rows, width, device=device, dtype=dtype))

        self.clusters: nn.Parameter = parameter(bands.num_tails, bands.dim)
        needs_projection = not tie.shares_embeddings and bands.dim != self.in_dim
        self.projection: nn.Linear | None = (
            nn.Linear(self.in_dim, bands.dim, bias=False, device=device, dtype=dtype)
            if needs_projection
            else None
        )
        self.head_projection: nn.Parameter | None = (
            parameter(bands.dim, bands.dim) if self.has_head_projection else None
        )
        self.embeddings: nn.ParameterList = nn.ParameterList(
            parameter(size, width)
            for size, width in zip(bands.sizes, bands.widths, strict=True)
            if not tie.shares_embeddings
        )
        # Entry i belongs to band i + 1; the head has none.
        self.tail_projections: nn.ParameterList = nn.ParameterList(
            parameter(width, bands.dim)
            for width in bands.widths[1:]
            if not tie.shares_tail_projections
        )

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        # The vectors of head words and tail bands form one matrix; Xavier's bound counts both.
        fan = self.bands.sizes[0] + self.bands.num_tails + self.bands.dim
        head = initialization.uniform((6 / fan) ** 0.5)
        for band in range(len(self.embeddings)):
            yield f"embeddings.{band}", head if band == 0 else initialization.xavier_uniform()
        # Without tails `clusters` is empty, and Xavier's bound would divide by zero.
        tied = initialization.xavier_uniform() if self.bands.num_tails else initialization.zeros
        yield "clusters", tied if self.tie.shares_embeddings else head
        for index in range(len(self.tail_projections)):
            yield f"tail_projections.{index}", initialization.xavier_uniform()
        if self.head_projection is not None:
            yield "head_projection", initialization.xavier_uniform()
        if self.projection is not None:
            yield "projection.weight", initialization.xavier_uniform()

    def extra_repr(self) -> str:
        return (
            f"{self.bands}, in_dim={self.in_dim}, tie={self.tie.value!r}, "
            f"tail_dropout={self.tail_dropout}, ignore_index={self.ignore_index}, "
            f"reduction={self.reduction!r}"
        )

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, reduced by `reduction` over the targets that are not `ignore_index`.

        The mean is 0 if there are no such targets.
        """
        scored = targets.long() != self.ignore_index  # a narrow dtype may not hold ignore_index
        if self.reduction == "none":
            return self.nll(hidden, targets, scored)
        total = self.nll_sum(hidden, targets, scored)
        return total if self.reduction == "sum" else total / scored.sum().clamp(min=1)

    def _nll(self, nll: _Nll, hidden: Tensor, targets: Tensor, scored: Tensor | None) -> Tensor:
        hidden_ND, targets_N, scored_N = self._flatten(hidden, targets, scored)
        hidden_ND = self._drop_and_project(hidden_ND)
        if self.table_shards is not None:
            nll, targets_N, scored_N = self.table_shards.scoring(nll, targets_N, scored_N)
        edges = self.bands.edges
        # The head's target is the word itself or, for a tail word, its band.
        head_targets_N = targets_N
        for band in range(1, self.bands.num_bands):
            band_target = edges[1] + band - 1
            head_targets_N = head_targets_N.where(targets_N < edges[band], band_target)
        tables = self._table(0), self.clusters
        head = torch.cat(tables) if self.table_shards is None else tables
        total = nll(self._project_head(hidden_ND), head, head_targets_N, scored_N, self.impl)
        for band in range(1, self.bands.num_bands):
            in_band_N = scored_N & (targets_N >= edges[band]) & (targets_N < edges[band + 1])
            tail_targets_N = (targets_N - edges[band]).where(in_band_N, 0)
            tail_NE = self._project_tail(hidden_ND, band)
            total = total + nll(
                tail_NE, self._table(band), tail_targets_N, in_band_N, self.impl, rows="few"
            )
        return total

    @property
    def edges(self) -> tuple[int, ...]:
        return self.bands.edges

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word, [..., V]. Only for small vocabularies."""
        hidden = self._drop_and_project(hidden)
        in_head = self._project_head(hidden)
        # Two products: concatenating the weights would copy the whole head.
        logits = [F.linear(in_head, weight) for weight in (self._table(0), self.clusters)]
        head = _log_softmax(torch.cat(logits, dim=-1))
        num_words = self.bands.sizes[0]
        parts = [head[..., :num_words]]
        for band in range(1, self.bands.num_bands):
            within = _log_softmax(F.linear(self._project_tail(hidden, band), self._table(band)))
            parts.append(head[..., num_words + band - 1, None] + within)
        return torch.cat(parts, dim=-1)

    log_prob = log_probs
    """The name in `nn.AdaptiveLogSoftmaxWithLoss`."""

    def predict(self, hidden: Tensor) -> Tensor:
        """Return the id of the most likely word for each hidden vector, [...]."""
        return self.topk(hidden, 1).indices.squeeze(-1)

    def topk(self, hidden: Tensor, k: int) -> torch.return_types.topk:
        """Return `log_probs(hidden).topk(k)`, computed in chunks of rows without gradients."""
        _require_width(hidden, self.in_dim)
        best_NK, ids_NK = most_likely(self, hidden.reshape(-1, self.in_dim), k)
        shape = (*hidden.shape[:-1], k)
        return torch.return_types.topk((best_NK.view(shape), ids_NK.view(shape)))

    def _drop_and_project(self, hidden: Tensor) -> Tensor:
        hidden = dropout(hidden, self.input_dropout, self.training)
        return hidden if self.projection is None else self.projection(hidden)

    def _project_head(self, hidden: Tensor) -> Tensor:
        (tied_to,) = self._tied_to
        if self.head_projection is not None:
            return F.linear(hidden, self.head_projection)
        if tied_to is None or not self.tie.shares_head_projection:
            return hidden
        return F.linear(hidden, tied_to.projections[0].T)

    def _project_tail(self, hidden: Tensor, band: int) -> Tensor:
        (tied_to,) = self._tied_to
        if tied_to is None or not self.tie.shares_tail_projections:
            projection = self.tail_projections[band - 1]
        else:
            projection = tied_to.band_weights(band)[1].T
        return dropout(
            F.linear(hidden, projection), self.tail_dropout_rates[band - 1], self.training
        )

    def _table(self, band: int) -> Tensor:
        (tied_to,) = self._tied_to
        return self.embeddings[band] if tied_to is None else tied_to.band_weights(band)[0]

    @classmethod
    def from_torch(cls, module: nn.AdaptiveLogSoftmaxWithLoss, **options: Any) -> AdaptiveSoftmax:
        """Create an untied layer from `nn.AdaptiveLogSoftmaxWithLoss`. `options` are passed to the
        constructor."""
        if module.head.bias is not None:
            raise ValueError("head_bias=True: AdaptiveSoftmax has no biases; use head_bias=False")
        bands = Bands(module.n_classes, tuple(module.cutoffs), module.in_features, module.div_value)
        weight = module.head.weight
        softmax = cls(bands, **{"device": weight.device, "dtype": weight.dtype} | options)
        with torch.no_grad():
            for ours, theirs in softmax._pair_weights(module):
                ours.copy_(theirs)
        return softmax

    def to_torch(self) -> nn.AdaptiveLogSoftmaxWithLoss:
        """Return an `nn.AdaptiveLogSoftmaxWithLoss` with a copy of these weights."""
        bands = self.bands
        projects = self.projection is not None or self.has_head_projection
        if self.tie != Tie.NONE or projects or bands.num_tails == 0:
            raise ValueError(
                f"tie={self.tie.value!r}, in_dim={self.in_dim}, head_projection="
                f"{self.has_head_projection}, cutoffs={bands.cutoffs}: PyTorch's module has "
                "no tied weights or head projection, and needs at least one cutoff"
            )
        module = nn.AdaptiveLogSoftmaxWithLoss(
            bands.dim, bands.vocab_size, bands.cutoffs, div_value=bands.factor
        )
        with torch.no_grad():
            for ours, theirs in self._pair_weights(module):
                theirs.copy_(ours)
        return module.to(self.clusters)

    def _pair_weights(
        self, module: nn.AdaptiveLogSoftmaxWithLoss
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each weight with its counterpart in PyTorch's module."""
        num_words = self.bands.sizes[0]
        yield self.embeddings[0], module.head.weight[:num_words]
        yield self.clusters, module.head.weight[num_words:]
        for band, tail in enumerate(module.tail, start=1):
            yield self.tail_projections[band - 1], tail.get_parameter("0.weight")
            yield self.embeddings[band], tail.get_parameter("1.weight")


def _require_dense_gradients(tied_to: FixedEmbedding | AdaptiveEmbedding | None) -> None:
    if tied_to is not None and tied_to.sparse:
        raise ValueError(
            "tied_to: its gradients are sparse, but the output layer's are dense; use "
            "sparse=False, or do not tie the layers"
        )


def _require_width(hidden: Tensor, in_dim: int) -> None:
    if hidden.shape[-1] != in_dim:
        raise ValueError(
            f"hidden.shape={tuple(hidden.shape)}: this layer expects vectors of width {in_dim}"
        )


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.to(statistics_dtype(logits.dtype)).log_softmax(dim=-1)
