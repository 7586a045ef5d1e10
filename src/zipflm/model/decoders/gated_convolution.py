"""Gated convolutions: residual blocks of causal convolutions with gated linear units (Dauphin et
al., Language Modeling with Gated Convolutional Networks, 2017).

The state holds the last kernel - 1 inputs of every convolution.

Shapes: B rows, T words, S words including past ones, M input width of a convolution, N its output
width, K its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zipflm.config import GatedConvolutionDecoder
from zipflm.config.decoder import convolutions_of
from zipflm.kernels.dropout import dropout
from zipflm.model import initialization
from zipflm.model.decoders.constant_state import (
    ConstantStateDecoder,
    ConstantStateLayer,
    prepend_past,
    windows,
)
from zipflm.model.initialization import Fill, InitializedModule


class GatedConvolution(ConstantStateDecoder):
    has_output_dropout = False

    def __init__(self, config: GatedConvolutionDecoder):
        pairs = zip(config.blocks, config.widths, strict=True)
        super().__init__(config, [_Block(config, block, *widths) for block, widths in pairs])


class _Block(ConstantStateLayer):
    """Convolutions with a residual connection, scaled to preserve the variance."""

    def __init__(
        self, config: GatedConvolutionDecoder, block: tuple[int, int, int], before: int, width: int
    ):
        super().__init__()
        shapes = convolutions_of(*block, before)
        self.rate = config.dropout
        keep = 1 - self.rate
        # At initialization, gated linear units reduce the variance to a quarter. Dropout raises it.
        self.convolutions: nn.ModuleList = nn.ModuleList(
            WeightNormalized(into, 2 * out, kernel, gain=2 * math.sqrt(keep))
            for kernel, into, out in shapes
        )
        self.residual: nn.Module = nn.Identity()
        if before != width:
            self.residual = WeightNormalized(before, width, gain=math.sqrt(keep))
        self.state_shapes = [(kernel - 1, into) for kernel, into, _ in shapes if kernel > 1]

    def forward(self, hidden: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        residual, before, after = self.residual(hidden), iter(states), []
        for convolution in self.convolutions:
            assert isinstance(convolution, WeightNormalized)
            hidden = dropout(hidden, self.rate, self.training)
            if convolution.kernel > 1:
                hidden, past = prepend_past(next(before), hidden)
                after.append(past)
            hidden = F.glu(convolution(hidden))
        return (hidden + residual) * math.sqrt(0.5), after


class WeightNormalized(InitializedModule):
    """A convolution, or with kernel 1 a linear layer, with weight normalization (Salimans and
    Kingma, 2016)."""

    def __init__(self, in_width: int, out_width: int, kernel: int = 1, *, gain: float):
        super().__init__()
        self.kernel, self._initial_gain = kernel, gain
        self.direction_NMK = nn.Parameter(torch.empty(out_width, in_width, kernel))
        self.gain_N = nn.Parameter(torch.empty(out_width))
        self.bias_N = nn.Parameter(torch.empty(out_width))
        self._cached: tuple[object, Tensor] | None = None
        self.reset_parameters()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        # The larger the norm of a direction, the more slowly it changes. Start with about the norm
        # of the weights, which is the gain.
        fan_in = self.direction_NMK[0].numel()
        yield "direction_NMK", initialization.normal(self._initial_gain / math.sqrt(fan_in))
        yield "gain_N", initialization.constant(self._initial_gain)
        yield "bias_N", initialization.zeros

    def forward(self, hidden_BSM: Tensor) -> Tensor:
        """Return [B, T, N] for the T = S - K + 1 windows."""
        return F.linear(windows(hidden_BSM, self.kernel), self._weight(), self.bias_N)

    def train(self, mode: bool = True) -> WeightNormalized:
        # `_weight` would miss changes by fused optimizers, which do not increment `_version`.
        self._cached = None
        return super().train(mode)

    def _weight(self) -> Tensor:
        """Return the weights [N, M * K]. They are cached during inference, because for a
        single word, normalizing takes as long as the product."""
        direction, gain = self.direction_NMK, self.gain_N
        if torch.compiler.is_compiling() or direction.is_inference():
            return self._normalize()
        if self.training or torch.is_grad_enabled():
            self._cached = None
            return self._normalize()
        key = (direction.data_ptr(), direction._version, gain.data_ptr(), gain._version)
        if self._cached is None or self._cached[0] != key:
            self._cached = key, self._normalize()
        return self._cached[1]

    def _normalize(self) -> Tensor:
        flat = self.direction_NMK.flatten(1)
        norms_N: Tensor = torch.linalg.vector_norm(flat, dim=1)
        return flat * (self.gain_N / norms_N).unsqueeze(1)
