"""The adaptive softmax (Grave et al., 2017), optionally tied to an adaptive embedding.

Shapes: ... any leading dimensions, N flattened tokens, D model width, V words, E width of a band,
K most likely words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.types import Device

from zipflm.config import Tie
from zipflm.kernels import Impl
from zipflm.kernels.dropout import dropout
from zipflm.model import initialization
from zipflm.model.bands import Bands
from zipflm.model.initialization import Fill
from zipflm.model.inputs import AdaptiveEmbedding
from zipflm.model.outputs import (
    NllOp,
    OutputLayer,
    log_softmax,
    require_dense_gradients,
    require_width,
)
from zipflm.model.sampling import most_likely


class AdaptiveSoftmax(OutputLayer):
    """A softmax over the head's words and the tail bands, and one softmax per tail band.

    The first softmax gives the probability of a head word. The probability of a word in a tail is
    the product of the band's probability in the first softmax and the word's probability in the
    band's own softmax (Grave et al., 2017, without biases). Calling the layer returns the loss, as
    with `nn.CrossEntropyLoss`:

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
        tail_dropout: float = 0.0,
        input_dropout: float = 0.0,
        head_projection: bool = False,
        ignore_index: int = -100,
        reduction: Literal["mean", "sum", "none"] = "mean",
        impl: Impl = "auto",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        """`in_dim` is the width of the hidden vectors (default: `bands.dim`). `tie` selects which
        weights of `tied_to` to share: `none`, `embeddings`, `projections` (embeddings and tail
        projections) or `head` (also the head's projection). `input_dropout` is applied to the
        hidden vectors, `tail_dropout` to their projections for the tails. `head_projection` adds an
        unshared square projection to the head. `ignore_index` and `reduction` are as in
        `nn.CrossEntropyLoss`. `impl` selects the implementation (see `zipflm.kernels`). `device`
        and `dtype` apply to weights that are not shared."""
        super().__init__()
        self.bands: Bands = bands
        self.tie: Tie = Tie(tie)
        self.impl: Impl = impl
        self.in_dim: int = bands.dim if in_dim is None else in_dim
        self.tail_dropout: float = tail_dropout
        self.input_dropout: float = input_dropout
        self.has_head_projection: bool = head_projection
        self.ignore_index: int = ignore_index
        self.reduction: Literal["mean", "sum", "none"] = reduction
        self._tied_to = (tied_to,)  # in a tuple, so that nn.Module does not register it
        self._check()
        self._make_parameters(device, dtype)
        self.reset_parameters()

    def _check(self) -> None:
        (tied_to,) = self._tied_to
        if self.reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction={self.reduction!r}: choose from mean, sum, none")
        for name in ("tail_dropout", "input_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be in [0, 1)")
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
        require_dense_gradients(tied_to)
        if not self.tie.shares_head_projection and self.bands.dim != self.in_dim:
            raise ValueError(
                f"tie={self.tie.value!r}: bands.dim={self.bands.dim} must equal in_dim="
                f"{self.in_dim}; or use tie='head', which projects hidden vectors to bands.dim"
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
        # Entry i belongs to band i + 1, because the head has no such projection.
        self.tail_projections: nn.ParameterList = nn.ParameterList(
            parameter(width, bands.dim)
            for width in bands.widths[1:]
            if not tie.shares_tail_projections
        )

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        # The vectors of head words and tail bands form one matrix, so the bound depends on both.
        fan = self.bands.sizes[0] + self.bands.num_tails + self.bands.dim
        head = initialization.uniform((6 / fan) ** 0.5)
        for band in range(len(self.embeddings)):
            yield f"embeddings.{band}", head if band == 0 else initialization.xavier_uniform()
        yield "clusters", initialization.xavier_uniform() if self.tie.shares_embeddings else head
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
        """Return the mean or sum of the nll over all targets that are not `ignore_index`. With
        reduction `none`, return the nll of each target, 0 where it is `ignore_index`.

        The mean is 0, not NaN, if all targets are `ignore_index`.
        """
        scored = targets.long() != self.ignore_index  # a narrow dtype may not hold ignore_index
        if self.reduction == "none":
            return self.nll(hidden, targets, scored)
        total = self.nll_sum(hidden, targets, scored)
        return total if self.reduction == "sum" else total / scored.sum().clamp(min=1)

    def _score(self, nll: NllOp, hidden_ND: Tensor, targets_N: Tensor, scored_N: Tensor) -> Tensor:
        hidden_ND = self._drop_and_project(hidden_ND)
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
        """Return log p of every word, [..., V]. Unlike `nll`, this keeps V values per hidden vector
        in memory."""
        hidden = self._drop_and_project(hidden)
        in_head = self._project_head(hidden)
        # Two products, because concatenating the weights would copy the table of the head.
        logits = [F.linear(in_head, weight) for weight in (self._table(0), self.clusters)]
        head = log_softmax(torch.cat(logits, dim=-1))
        num_words = self.bands.sizes[0]
        parts = [head[..., :num_words]]
        for band in range(1, self.bands.num_bands):
            within = log_softmax(F.linear(self._project_tail(hidden, band), self._table(band)))
            parts.append(head[..., num_words + band - 1, None] + within)
        return torch.cat(parts, dim=-1)

    log_prob = log_probs
    """The name in `nn.AdaptiveLogSoftmaxWithLoss`."""

    def predict(self, hidden: Tensor) -> Tensor:
        """Return the id of the most likely word for each hidden vector, [...]."""
        return self.topk(hidden, 1).indices.squeeze(-1)

    def topk(self, hidden: Tensor, k: int) -> torch.return_types.topk:
        """Return the k most likely words: values and indices [..., K], as from
        `log_probs(hidden).topk(k)`, but without gradients and with ties in the order of the ids.

        The log-probabilities are computed in chunks, to bound the memory.
        """
        require_width(hidden, self.in_dim)
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
        return dropout(F.linear(hidden, projection), self.tail_dropout, self.training)

    def _table(self, band: int) -> Tensor:
        (tied_to,) = self._tied_to
        return self.embeddings[band] if tied_to is None else tied_to.band_weights(band)[0]

    @classmethod
    def from_torch(cls, module: nn.AdaptiveLogSoftmaxWithLoss, **options: Any) -> AdaptiveSoftmax:
        """Create an untied layer with a copy of the weights of `nn.AdaptiveLogSoftmaxWithLoss`.
        `options` are passed to the constructor."""
        if module.head.bias is not None:
            raise ValueError(
                "module: has head_bias=True, but AdaptiveSoftmax has no biases; train the module "
                "with head_bias=False"
            )
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
        has_projection = self.projection is not None or self.has_head_projection
        if self.tie != Tie.NONE or has_projection or bands.num_tails == 0:
            raise ValueError(
                f"tie={self.tie.value!r}, in_dim={self.in_dim}, head_projection="
                f"{self.has_head_projection}, cutoffs={bands.cutoffs}: cannot be converted; "
                "PyTorch's module needs tie='none', in_dim equal to bands.dim, no head projection, "
                "and at least one cutoff"
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
