"""Decoders whose state has the same size after any number of words, and the states of many rows.

Shapes: B rows, T words, D width of the decoder's input.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from zipflm.config import Recompute
from zipflm.config.decoder import Decoder
from zipflm.kernels import autocast
from zipflm.kernels.dropout import dropout

States = tuple[Tensor, ...]
"""Each [B, ...]; what they hold is the layers' business."""


class ConstantStateLayer(nn.Module):
    """`layer(hidden_BTD, states) -> hidden_BTD, states`; it drops out its own input."""

    state_shapes: list[tuple[int, ...]]
    """Shape of each of its states, for one row."""


class ConstantStateDecoder(nn.Module):
    """Layers in turn; the state of the decoder is the states of all of them."""

    drops_output = True

    def __init__(self, config: Decoder, layers: Sequence[ConstantStateLayer]):
        super().__init__()
        self.config = config
        self.layers: nn.ModuleList = nn.ModuleList(layers)
        self._shapes = [layer.state_shapes for layer in layers]

    def set_recompute(self, what: Recompute) -> None:
        """Nothing: configs refuse anything but `none`."""

    def start(self, rows: int, like: Tensor) -> States:
        """The state before the first word, with the dtype and on the device of `like`."""
        return tuple(like.new_zeros(rows, *shape) for shapes in self._shapes for shape in shapes)

    def new_state(self, rows: int, capacity: int = 0) -> RowStates:
        """The state before the first word, for inference; no words are too many for it."""
        return RowStates(self.start(rows, autocast(next(self.parameters())[:0])))

    def forward(
        self,
        embedded_BTD: Tensor,
        state: States | None = None,
        layer_inputs: list[Tensor] | None = None,
    ) -> tuple[Tensor, States]:
        """Hidden vectors, and the state after them; the input of every layer is appended to
        `layer_inputs`."""
        # As in the Transformer: tables of words start with rows of norm 1.
        hidden = autocast(embedded_BTD) * math.sqrt(self.config.dim)
        before = iter(self.start(len(hidden), hidden) if state is None else state)
        after: list[Tensor] = []
        for layer, shapes in zip(self.layers, self._shapes, strict=True):
            if layer_inputs is not None:
                layer_inputs.append(hidden)
            hidden, states = layer(hidden, [next(before) for _ in shapes])
            after += states
        if self.drops_output:
            hidden = dropout(hidden, self.config.dropout, self.training)
        return hidden, tuple(after)


def with_past(past_BPD: Tensor, hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """Words after those that a window also sees, and the last of them, which later windows see."""
    whole = torch.cat([past_BPD.to(hidden_BTD.dtype), hidden_BTD], dim=1)
    return whole, whole[:, whole.shape[1] - past_BPD.shape[1] :]


def windows(whole_BSD: Tensor, size: int) -> Tensor:
    """Every `size` neighbours as one vector, [B, S - size + 1, D * size]: what a convolution
    multiplies with its kernels."""
    return whole_BSD if size == 1 else whole_BSD.unfold(1, size, 1).flatten(2)


class RowStates:
    """The states of rows that may join and leave. `model(words, states)` replaces them by those
    after the words; what was taken from here before does not change.

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

    def select(self, rows: Tensor) -> RowStates:
        """New states that hold these rows, in this order; a row may be named more than once."""
        return RowStates(tuple(tensor[rows] for tensor in self.tensors))

    def row(self, index: int) -> RowStates:
        """One row."""
        return RowStates(tuple(tensor[index : index + 1] for tensor in self.tensors))

    def join(self, states: RowStates, lengths: Sequence[int] = (), capacity: int = 0) -> None:
        """Add all rows of other states, of any lengths."""
        pairs = zip(self.tensors, states.tensors, strict=True)
        self.tensors = tuple(map(torch.cat, pairs)) if self.rows else states.tensors

    def drop(self, rows: Collection[int]) -> list[int]:
        """Forget these rows; the ones that are left, in order."""
        kept = [row for row in range(self.rows) if row not in rows]
        places = torch.tensor(kept, dtype=torch.int64, device=self.tensors[0].device)
        self.tensors = self.select(places).tensors
        return kept

    def full(self, length: int) -> list[int]:
        """Rows that hold `length` words or more and have to slide: none."""
        return []

    def snapshot(self) -> States:
        """What `restore` returns to."""
        return self.tensors

    def restore(self, snapshot: States) -> None:
        self.tensors = snapshot
