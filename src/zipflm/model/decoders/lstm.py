"""LSTM layers with projections (Sak et al., 2014), using `torch.nn.LSTM` (cuDNN on a GPU).

The state holds the last output and the cells of each layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from zipflm.config import LSTMDecoder
from zipflm.kernels.dropout import dropout
from zipflm.model import initialization
from zipflm.model.decoders.constant_state import ConstantStateDecoder, ConstantStateLayer
from zipflm.model.initialization import Fill

# Harmless: torch falls back to its own CPU implementation.
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
        self.reset_parameters()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        default = initialization.torch_linear(self.cells.hidden_size)
        # The forget gates, the second of four, start at 1, so that cells keep most of their values.
        forget = initialization.constant(0.0, 1.0, 0.0, 0.0)
        for name, _ in self.cells.named_parameters():
            is_weight = name.startswith("weight")
            bias = forget if name.startswith("bias_ih") else initialization.zeros
            yield f"cells.{name}", default if is_weight else bias

    def forward(self, hidden: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        hidden = dropout(hidden, self.rate, self.training)
        output, cells = (state.to(hidden.dtype).unsqueeze(0) for state in states)
        hidden, (output, cells) = self.cells(hidden, (output, cells))
        return hidden, [output.squeeze(0), cells.squeeze(0)]
