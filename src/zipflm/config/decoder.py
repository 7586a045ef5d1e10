"""Configuration of the decoders, with their parameter counts and costs.

To add a decoder, define its config here and include it in `DecoderConfig`. Then add a module that
implements it to `model.decoders`, and a case to `build_decoder`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from zipflm.config.checks import ByKind, Checked, FractionBelowOne, PositiveInt


class Decoder(Checked, ABC):
    """Base class of decoder configurations."""

    dim: int
    dropout: float
    has_constant_state = True
    """True if the size of the state does not depend on the length of the text. Such a decoder can
    read texts of any length, and carry its state from one update to the next."""
    is_compilable = True
    """True if `torch.compile` can compile the decoder."""

    @property
    def output_dim(self) -> int:
        """Width of the output. `dim` is the width of the input."""
        return self.dim

    @abstractmethod
    def params(self) -> dict[str, int]:
        """Return the number of trainable parameters by part."""

    def products(self, block: int) -> float:
        """Return the number of multiply-adds per token, by default one per parameter."""
        return sum(self.params().values())

    @abstractmethod
    def describe(self) -> str:
        """Return a short description for tables."""


@dataclass(frozen=True, kw_only=True)
class TransformerDecoder(Decoder):
    """Transformer decoder (section 4.1). The defaults are the paper's for WikiText-103."""

    is_default_kind = True
    has_constant_state = False

    dim: PositiveInt = 1024
    """Model width."""
    num_layers: PositiveInt = 16
    """Number of layers."""
    num_heads: PositiveInt = 16
    """Number of attention heads."""
    ffn_dim: PositiveInt = 4096
    """Inner width of the feed-forward blocks."""
    dropout: FractionBelowOne = 0.3
    """Dropout on the input and on the outputs of attention and feed-forward."""
    attention_dropout: FractionBelowOne = 0.1
    """Dropout on attention weights."""
    relu_dropout: FractionBelowOne = 0.1
    """Dropout after the activation of the feed-forward."""
    final_norm: bool = False
    """Add a norm after the last layer. The paper has none."""
    init: Literal["paper", "fairseq", "zero-output"] = "paper"
    """Initialization. `paper`: Xavier, biases 0. `fairseq`: the rules of fairseq's later code, with
    PyTorch's defaults for the feed-forward and most biases. `zero-output`: like `paper`, but the
    output matrices of attention and feed-forward start at 0."""
    positions: Literal["sinusoidal", "rotary"] = "sinusoidal"
    """Position encoding: sinusoids added to the input, or rotations in attention."""
    qk_norm: bool = False
    """Normalize queries and keys per head."""
    activation: Literal["relu", "relu_squared"] = "relu"
    """Activation of the feed-forward."""
    norm: Literal["layer", "rms"] = "layer"
    """Type of all norms: LayerNorm, or RMSNorm without weights."""
    norm_position: Literal["before", "after"] = "before"
    """`before`: pre-norm, as in the paper. `after`: post-norm, as in the original Transformer."""
    bias: bool = True
    """Use biases in attention and feed-forward."""
    input_residual: bool = False
    """Add the decoder's input to the input of every layer, with learned weights."""
    value_residual: bool = False
    """Add the first layer's attention values to those of the later layers, with learned weights
    (Zhou et al., 2024)."""
    attention_gate: bool = False
    """Multiply the output of each attention head by a gate computed from the layer's input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("num_heads", self.dim % self.num_heads == 0, f"must divide dim={self.dim}")
        head_dim = self.dim // self.num_heads
        self.require(
            "num_heads",
            self.positions == "sinusoidal" or head_dim % 2 == 0,
            f"rotary positions need an even head width, but dim={self.dim} / num_heads is "
            f"{head_dim}",
        )

    def describe(self) -> str:
        return (
            f"{self.num_layers} layers, width {self.dim}, {self.num_heads} heads, "
            f"feed-forward {self.ffn_dim}, {self.positions} positions"
        )

    def params(self) -> dict[str, int]:
        parts = {"layers": self.num_layers * self._num_layer_params}
        if self.final_norm and self._num_norm_params:
            parts["final_norm"] = self._num_norm_params
        if self.input_residual:
            parts["input_residual"] = 2 * self.num_layers
        if self.value_residual:
            parts["value_residual"] = 2 * (self.num_layers - 1)
        return parts

    def products(self, block: int) -> float:
        """Return the number of multiply-adds per token, including attention.

        Attention takes `2 * dim` per visible position, and a token sees half of the block on
        average.
        """
        return self.num_layers * (self._num_layer_params + self.dim * block)

    @property
    def _num_layer_params(self) -> int:
        matrices = 4 * self.dim * self.dim + 2 * self.dim * self.ffn_dim
        biases = 5 * self.dim + self.ffn_dim if self.bias else 0
        gate = self.dim * self.num_heads if self.attention_gate else 0
        return matrices + biases + gate + 2 * self._num_norm_params

    @property
    def _num_norm_params(self) -> int:
        return 2 * self.dim if self.norm == "layer" else 0


@dataclass(frozen=True, kw_only=True)
class GatedConvolutionDecoder(Decoder):
    """Causal convolutions with gated linear units (Dauphin et al., 2017)."""

    dim: PositiveInt
    """Width of the input."""
    blocks: tuple[tuple[int, int, int], ...]
    """(kernel, width, bottleneck) of each residual block. A block with bottleneck 0 is a single
    convolution. Others have three: a convolution of size `kernel` and width `bottleneck`,
    between two of size 1."""
    dropout: FractionBelowOne = 0.2
    """Dropout on the input of each convolution."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = all(k >= 1 and width >= 1 and neck >= 0 for k, width, neck in self.blocks)
        remedy = "give blocks as kernel:width:bottleneck, e.g. 5:512:128, or 4:900:0 without one"
        self.require("blocks", len(self.blocks) > 0 and is_valid, remedy)

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    @property
    def output_dim(self) -> int:
        return self.blocks[-1][1]

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Input and output width of each block."""
        return list(pairwise([self.dim, *(width for _, width, _ in self.blocks)]))

    def params(self) -> dict[str, int]:
        # Each output channel has a bias and the gain of weight norm. Gates double the channels.
        convolutions = sum(
            2 * out * (kernel * into + 2)
            for block, (before, width) in zip(self.blocks, self.widths, strict=True)
            for kernel, into, out in convolutions_of(*block, before)
        )
        residuals = sum(out * (into + 2) for into, out in self.widths if into != out)
        return {"convolutions": convolutions} | ({"residuals": residuals} if residuals else {})

    def describe(self) -> str:
        context = 1 + sum(kernel - 1 for kernel, _, _ in self.blocks)
        return (
            f"{self.num_layers} blocks of gated convolutions, width {self.output_dim}, "
            f"context of {context} tokens"
        )


def convolutions_of(
    kernel: int, width: int, bottleneck: int, before: int
) -> list[tuple[int, int, int]]:
    """Return (kernel, input width, output width) of each convolution of a block."""
    if not bottleneck:
        return [(kernel, before, width)]
    return [(1, before, bottleneck), (kernel, bottleneck, bottleneck), (1, bottleneck, width)]


@dataclass(frozen=True, kw_only=True)
class LSTMDecoder(Decoder):
    """LSTM layers, each with a projection if `hidden_dim` differs from `dim`."""

    is_compilable = False

    dim: PositiveInt
    """Width of the input and of the output of each layer."""
    hidden_dim: PositiveInt
    """Number of cells per layer."""
    num_layers: PositiveInt = 1
    """Number of layers."""
    dropout: FractionBelowOne = 0.25
    """Dropout on the input of each layer and on the output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = f"must be at least dim={self.dim}, the width of the projection"
        self.require("hidden_dim", self.hidden_dim >= self.dim, remedy)

    @property
    def has_projection(self) -> bool:
        return self.hidden_dim != self.dim

    def params(self) -> dict[str, int]:
        gates = 4 * self.hidden_dim * (2 * self.dim + 2)
        projection = self.hidden_dim * self.dim if self.has_projection else 0
        return {"layers": self.num_layers * (gates + projection)}

    def describe(self) -> str:
        cells = f"{self.num_layers} layers of {self.hidden_dim} LSTM cells"
        return cells + (f", projected to {self.dim}" if self.has_projection else "")


@dataclass(frozen=True, kw_only=True)
class QRNNDecoder(Decoder):
    """Quasi-recurrent layers with fo-pooling (Bradbury et al., 2017; Merity et al., 2018)."""

    dim: PositiveInt
    """Width of the input and of the last layer."""
    hidden_dim: PositiveInt
    """Width of the other layers."""
    num_layers: PositiveInt = 4
    """Number of layers."""
    window: PositiveInt = 2
    """Number of tokens that the gates of the first layer see. Later layers see only the current
    one."""
    dropout: FractionBelowOne = 0.1
    """Dropout on the input of each layer and on the output."""

    @property
    def layers(self) -> list[tuple[int, int, int]]:
        """(window, input width, output width) of each layer."""
        widths = [self.dim, *[self.hidden_dim] * (self.num_layers - 1), self.dim]
        windows = [self.window, *[1] * (self.num_layers - 1)]
        return [(w, *pair) for w, pair in zip(windows, pairwise(widths), strict=True)]

    def params(self) -> dict[str, int]:
        return {"layers": sum(3 * out * (window * into + 1) for window, into, out in self.layers)}

    def describe(self) -> str:
        return f"{self.num_layers} QRNN layers, width {self.hidden_dim}"


DecoderConfig = Annotated[
    TransformerDecoder | GatedConvolutionDecoder | LSTMDecoder | QRNNDecoder, ByKind()
]
