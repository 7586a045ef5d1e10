"""The Transformer decoder as a value, with the answers to what it holds and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zipflm.config.checks import Checked, Fraction, Positive, require


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Checked):
    """The Transformer decoder (section 4.1); the defaults are the paper's for WikiText-103."""

    dim: Positive = 1024
    """Width of what a word becomes, from layer to layer."""
    num_layers: Positive = 16
    """Layers, each of attention and a feed-forward."""
    num_heads: Positive = 16
    """Of attention; they share `dim` among them."""
    ffn_dim: Positive = 4096
    """Width inside the feed-forward."""
    dropout: Fraction = 0.3
    """On the input, and on what attention and feed-forward add to the residual."""
    attention_dropout: Fraction = 0.1
    """On the weights that attention gives to earlier words."""
    relu_dropout: Fraction = 0.1
    """Inside the feed-forward, after its activation."""
    final_norm: bool = False
    """A norm after the last layer; the paper's parameter counts leave no room for one."""
    init: Literal["paper", "fairseq", "zero-output"] = "paper"
    """`paper`: Xavier everywhere, no bias. `fairseq`: that code's later rules, with PyTorch's own
    for the feed-forward. `zero-output`: as `paper`, but what adds to the residual starts at 0."""
    positions: Literal["sinusoidal", "rotary"] = "sinusoidal"
    """How a word knows its place: something added to the input, or a rotation in attention."""
    qk_norm: bool = False
    """Normalise queries and keys per head."""
    activation: Literal["relu", "relu_squared"] = "relu"
    """Inside the feed-forward."""
    norm: Literal["layer", "rms"] = "layer"
    """Of attention and feed-forward; `rms` has no weights."""
    norm_position: Literal["before", "after"] = "before"
    """`before`: norm what attention and feed-forward read, as the paper does. `after`: norm the sum
    of residual and result, as the original Transformer does (post-norm)."""
    bias: bool = True
    """Biases in attention and feed-forward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.dim % self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"must divide dim={self.dim}",
        )
        require(
            self.positions != "rotary" or self.dim // self.num_heads % 2 == 0,
            "num_heads",
            self.num_heads,
            f"rotary positions need an even head width, not {self.dim // self.num_heads}, which is "
            f"dim={self.dim} divided by it",
        )
        require(
            self.norm_position == "before" or not self.final_norm,
            "final_norm",
            self.final_norm,
            "with norm_position=after the last layer ends with a norm; use final_norm=false",
        )

    def params(self) -> dict[str, int]:
        """Number of trained parameters by part."""
        parts = {"layers": self.num_layers * self._num_layer_params}
        if self.final_norm and self._num_norm_params:
            parts["final_norm"] = self._num_norm_params
        return parts

    def products(self, block: int) -> float:
        """Multiply-adds for one token of a block: each weight once, and attention.

        Scoring a position and using it take `dim` products each, and causality leaves a token half
        of the block on average.
        """
        return self.num_layers * (self._num_layer_params + self.dim * block)

    @property
    def _num_layer_params(self) -> int:
        matrices = 4 * self.dim * self.dim + 2 * self.dim * self.ffn_dim
        biases = 5 * self.dim + self.ffn_dim if self.bias else 0
        return matrices + biases + 2 * self._num_norm_params

    @property
    def _num_norm_params(self) -> int:
        return 2 * self.dim if self.norm == "layer" else 0
