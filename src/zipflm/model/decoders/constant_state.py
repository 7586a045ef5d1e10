"""Base class of decoders with a state of constant size, and caches of such states.

Shapes: B rows, T words, D width of the decoder's input.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from zipflm.config import Recompute
from zipflm.config.decoder import Decoder
from zipflm.kernels import cast_for_matmul
from zipflm.kernels.dropout import dropout
from zipflm.model.initialization import InitializedModule

States = tuple[Tensor, ...]
"""Tensors [B, ...], defined by the layers."""


class ConstantStateLayer(InitializedModule):
    """`layer(hidden_BTD, states) -> hidden_BTD, states`, with dropout on its input."""

    state_shapes: list[tuple[int, ...]]
    """Shape of each state, without the dimension of rows."""


class ConstantStateDecoder(nn.Module):
    """A stack of layers. The state is the concatenation of the layers' states."""

    has_output_dropout = True

    def __init__(self, config: Decoder, layers: Sequence[ConstantStateLayer]):
        super().__init__()
        self.config = config
        self.layers: nn.ModuleList = nn.ModuleList(layers)
        self._shapes = [layer.state_shapes for layer in layers]

    def set_recompute(self, recompute: Recompute) -> None:
        """Do nothing: configs only accept `none` for these decoders."""

    def start(self, rows: int, like: Tensor) -> States:
        """Return the initial state, with the dtype and device of `like`."""
        return tuple(like.new_zeros(rows, *shape) for shapes in self._shapes for shape in shapes)

    def new_state(self, rows: int, capacity: int = 0) -> RowStates:
        """Return the initial state for inference. `capacity` is ignored."""
        return RowStates(self.start(rows, cast_for_matmul(next(self.parameters())[:0])))

    def forward(
        self,
        embedded_BTD: Tensor,
        state: States | None = None,
        layer_inputs: list[Tensor] | None = None,
    ) -> tuple[Tensor, States]:
        """Return hidden vectors and the new state. The input of each layer is appended to
        `layer_inputs`."""
        # Scale as in the Transformer, because rows of word tables start with a norm of about 1.
        hidden = cast_for_matmul(embedded_BTD) * math.sqrt(self.config.dim)
        before = iter(self.start(len(hidden), hidden) if state is None else state)
        after: list[Tensor] = []
        for layer, shapes in zip(self.layers, self._shapes, strict=True):
            if layer_inputs is not None:
                layer_inputs.append(hidden)
            hidden, states = layer(hidden, [next(before) for _ in shapes])
            after += states
        if self.has_output_dropout:
            hidden = dropout(hidden, self.config.dropout, self.training)
        return hidden, tuple(after)


def prepend_past(past_BPD: Tensor, hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """Prepend the past inputs of a window. Return the result and the past for the next call."""
    padded = torch.cat([past_BPD.to(hidden_BTD.dtype), hidden_BTD], dim=1)
    return padded, padded[:, padded.shape[1] - past_BPD.shape[1] :]


def windows(inputs_BSD: Tensor, size: int) -> Tensor:
    """Return the windows of a convolution as vectors, [B, S - size + 1, D * size]."""
    return inputs_BSD if size == 1 else inputs_BSD.unfold(1, size, 1).flatten(2)


class RowStates:
    """States of rows that can be added and removed. `model(words, states)` replaces `tensors` with
    new tensors, the states after the words.

    >>> from zipflm import LanguageModel
    >>> from zipflm.config import FixedInput, FullOutput, LSTMDecoder, ModelConfig
    >>> decoder = LSTMDecoder(dim=8, hidden_dim=16)
    >>> layers = dict(input=FixedInput(dim=8), output=FullOutput(dim=8))
    >>> model = LanguageModel(ModelConfig(vocab_size=50, decoder=decoder, **layers)).eval()
    >>> states = model.new_cache(rows=2, capacity=0)
    >>> with torch.inference_mode():
    ...     hidden = model(torch.tensor([[2, 17, 25], [2, 9, 39]]), states)
    >>> states.rows, [tuple(tensor.shape) for tensor in states.tensors]
    (2, [(2, 8), (2, 16)])
    """

    def __init__(self, tensors: States = ()) -> None:
        self.tensors = tensors

    @property
    def rows(self) -> int:
        return len(self.tensors[0]) if self.tensors else 0

    def select(self, rows: Sequence[int]) -> RowStates:
        """Return new states with these rows in this order. Rows may be repeated."""
        indices = torch.tensor(rows, dtype=torch.int64, device=self.tensors[0].device)
        return RowStates(tuple(tensor[indices] for tensor in self.tensors))

    def row(self, index: int) -> RowStates:
        return self.select([index])

    def join(self, states: RowStates, capacity: int = 0) -> None:
        """Append all rows of other states. `capacity` is ignored."""
        pairs = zip(self.tensors, states.tensors, strict=True)
        self.tensors = tuple(map(torch.cat, pairs)) if self.rows else states.tensors

    def drop(self, rows: Collection[int]) -> list[int]:
        """Remove these rows. Return the old indices of the remaining rows, in order."""
        kept = [row for row in range(self.rows) if row not in rows]
        self.tensors = self.select(kept).tensors
        return kept

    def empty_full(self, length: int) -> list[int]:
        """Return an empty list: states have room for any number of words."""
        return []

    def snapshot(self) -> States:
        return self.tensors

    def restore(self, snapshot: States) -> None:
        self.tensors = snapshot
