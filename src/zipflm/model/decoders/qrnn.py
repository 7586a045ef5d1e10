"""Quasi-recurrent layers with fo-pooling (Bradbury et al., 2017), as Merity et al. (2018) use them.

One matrix product computes the gates and candidates of all words. Only the elementwise pooling is
sequential. The state holds the cells and, if the window exceeds 1, the last window - 1 inputs.

Shapes: B rows, T words, H width of a layer, C chunks of L words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from zipflm.config import QRNNDecoder
from zipflm.kernels import statistics_dtype
from zipflm.kernels.dropout import dropout
from zipflm.model import initialization
from zipflm.model.decoders.constant_state import (
    ConstantStateDecoder,
    ConstantStateLayer,
    prepend_past,
    windows,
)
from zipflm.model.initialization import Fill


class QRNN(ConstantStateDecoder):
    def __init__(self, config: QRNNDecoder):
        super().__init__(config, [_Layer(*sizes, config.dropout) for sizes in config.layers])


class _Layer(ConstantStateLayer):
    def __init__(self, window: int, in_width: int, width: int, rate: float):
        super().__init__()
        self.window, self.rate = window, rate
        self.gates: nn.Linear = nn.Linear(window * in_width, 3 * width)
        self.state_shapes = [(width,)] + ([(window - 1, in_width)] if window > 1 else [])
        self.reset_parameters()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        # Two gates in sequence shrink the signal. PyTorch's default weights would shrink it more.
        std = 2 / math.sqrt(self.gates.in_features)
        yield "gates.weight", initialization.normal(std)
        yield "gates.bias", initialization.zeros

    def forward(self, hidden: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        hidden = dropout(hidden, self.rate, self.training)
        cells, *past = states
        if past:
            hidden, newest = prepend_past(past[0], hidden)
            past = [newest]
        candidate, forget, output = self.gates(windows(hidden, self.window)).chunk(3, dim=-1)
        forget = forget.to(statistics_dtype(forget.dtype)).sigmoid()
        pooled = linear_scan(forget, (1 - forget) * candidate.tanh(), cells.to(forget.dtype))
        return (output.sigmoid() * pooled).to(hidden.dtype), [pooled[:, -1], *past]


def linear_scan(decay_BTH: Tensor, input_BTH: Tensor, start_BH: Tensor) -> Tensor:
    """Compute state[t] = decay[t] * state[t - 1] + input[t] for all t: [B, T, H].

    >>> decay, input = torch.tensor([[[0.5], [0.5], [1.0]]]), torch.tensor([[[1.0], [0.0], [2.0]]])
    >>> linear_scan(decay, input, torch.zeros(1, 1)).flatten().tolist()
    [1.0, 0.5, 2.5]
    """
    if decay_BTH.shape[1] == 1:
        return decay_BTH * start_BH.unsqueeze(1) + input_BTH
    result: Tensor = _LinearScan.apply(decay_BTH, input_BTH, start_BH)  # type: ignore[no-untyped-call]
    return result


class _LinearScan(torch.autograd.Function):
    """Computes the gradient as a reverse scan, so no intermediate results are saved."""

    @staticmethod
    def forward(ctx: Any, decay_BTH: Tensor, input_BTH: Tensor, start_BH: Tensor) -> Tensor:
        states_BTH = _scan(decay_BTH, input_BTH, start_BH)
        ctx.save_for_backward(decay_BTH, start_BH, states_BTH)
        return states_BTH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay_BTH, start_BH, states_BTH = ctx.saved_tensors
        next_decay_BTH = F.pad(decay_BTH[:, 1:], (0, 0, 0, 1))
        zeros_BH = torch.zeros_like(start_BH)
        inputs_BTH = _scan(next_decay_BTH.flip(1), grad_BTH.flip(1), zeros_BH).flip(1)
        before_BTH = torch.cat([start_BH.unsqueeze(1), states_BTH[:, :-1]], dim=1)
        return inputs_BTH * before_BTH, inputs_BTH, inputs_BTH[:, 0] * decay_BTH[:, 0]


def _scan(decay_BTH: Tensor, input_BTH: Tensor, start_BH: Tensor) -> Tensor:
    """Scan chunks of about sqrt(T) words in parallel, each from a zero state, then compute the
    states between chunks in sequence. There are no quotients that could overflow."""
    rows, length, width = decay_BTH.shape
    size = math.isqrt(length - 1) + 1
    chunks = -(-length // size)
    padding = (0, 0, 0, chunks * size - length)
    decay_BCLH, input_BCLH = (
        F.pad(values, padding).view(rows, chunks, size, width) for values in (decay_BTH, input_BTH)
    )
    decay_BCH, state_BCH = decay_BCLH[:, :, 0], input_BCLH[:, :, 0]
    decays, states = [decay_BCH], [state_BCH]
    for index in range(1, size):
        step_BCH = decay_BCLH[:, :, index]
        decay_BCH, state_BCH = decay_BCH * step_BCH, state_BCH * step_BCH + input_BCLH[:, :, index]
        decays.append(decay_BCH)
        states.append(state_BCH)
    starts = [start_BH]
    for chunk in range(chunks - 1):
        starts.append(decay_BCH[:, chunk] * starts[-1] + state_BCH[:, chunk])
    start_BC1H = torch.stack(starts, dim=1).unsqueeze(2)
    all_BCLH = torch.stack(states, dim=2) + torch.stack(decays, dim=2) * start_BC1H
    return all_BCLH.view(rows, chunks * size, width)[:, :length]
