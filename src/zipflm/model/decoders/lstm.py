"""LSTM layers with projections (Sak et al., 2014), by `torch.nn.LSTM`, which is cuDNN's on a GPU.

The state is what each layer returned last, and its cells.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor, nn

from zipflm.config import LSTMDecoder
from zipflm.kernels.dropout import dropout
from zipflm.model import initialization
from zipflm.model.decoders.constant_state import ConstantStateDecoder, ConstantStateLayer
from zipflm.model.initialization import Fill

# torch says so when a CPU first computes a projection, which it does well enough without.
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


class LSTM(ConstantStateDecoder):
    def __init__(self, config: LSTMDecoder):
        super().__init__(config, [_Layer(config) for _ in range(config.num_layers)])


class _Layer(ConstantStateLayer):
    def __init__(self, config: LSTMDecoder):
        super().__init__()
        self.rate = config.dropout
        self.cells = nn.LSTM(
            config.dim,
            config.hidden_dim,
            proj_size=config.dim if config.has_projection else 0,
            batch_first=True,
        )
        self.state_shapes = [(config.dim,), (config.hidden_dim,)]
        initialization.reset(self)

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        default = initialization.torch_linear(self.cells.hidden_size)
        for name, _ in self.cells.named_parameters():
            is_weight = name.startswith("weight")
            bias = _remembering if name.startswith("bias_ih") else initialization.zeros
            yield f"cells.{name}", default if is_weight else bias

    def forward(self, hidden: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        hidden = dropout(hidden, self.rate, self.training)
        output, cells = (state.to(hidden.dtype).unsqueeze(0) for state in states)
        hidden, (output, cells) = self.cells(hidden, (output, cells))
        return hidden, [output.squeeze(0), cells.squeeze(0)]


def _remembering(tensor: Tensor, generator: Generator | None = None) -> object:
    """Biases with which cells at first keep most of what they hold: forget gates, the second of
    the four, are biased by 1."""
    with torch.no_grad():
        tensor.zero_().chunk(4)[1].fill_(1.0)
    return tensor
