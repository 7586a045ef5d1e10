"""The parts of a model: input layers, output layers, the decoder, and what may be shared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from zipflm.config.checks import require, require_choices, require_fraction, require_positive


class Tie(StrEnum):
    """Which weights the output layer shares with the input layer (the paper's appendix A)."""

    NONE = "none"
    EMBEDDINGS = "embeddings"
    PROJECTIONS = "projections"
    """Embeddings and the projections of the tail bands: ADP-T on WikiText-103."""
    HEAD = "head"
    """Embeddings and every projection, the head's too."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"tie={value!r}: choose from {', '.join(cls)}")


@dataclass(frozen=True, kw_only=True)
class FixedInput:
    """One table for all words or sub-words, projected to the decoder's width if it differs."""

    dim: int
    """Width of the table."""

    def __post_init__(self) -> None:
        require_positive(dim=self.dim)


@dataclass(frozen=True, kw_only=True)
class AdaptiveInput:
    """A table and a projection per band (section 3)."""

    cutoffs: tuple[int, ...]
    """Cumulative ends of all bands but the last."""
    dim: int
    """Width of the head; band i has floor(dim / factor**i)."""
    factor: float = 4
    """By how much each band is narrower than the one before."""


@dataclass(frozen=True, kw_only=True)
class CharacterInput:
    """A convolution over the bytes of each word, highway layers, a projection (section 4.4)."""

    char_dim: int = 128
    """Width of a byte's embedding."""
    filters: tuple[tuple[int, int], ...] = (
        (1, 128),
        (2, 256),
        (3, 384),
        (4, 512),
        (5, 512),
        (6, 512),
        (7, 512),
    )
    """(bytes seen at once, features) of every filter."""
    highway_layers: int = 1
    """The paper uses 1 for WikiText-103 and 2 for Billion Word."""
    max_bytes: int = 50
    """Longer words are cut, shorter ones padded."""

    def __post_init__(self) -> None:
        require_positive(char_dim=self.char_dim, max_bytes=self.max_bytes)
        require(
            self.highway_layers >= 0, "highway_layers", self.highway_layers, "must be 0 or more"
        )
        require(len(self.filters) > 0, "filters", self.filters, "give at least one filter")
        for pair in self.filters:
            require(
                len(pair) == 2 and 1 <= pair[0] <= self.max_bytes and pair[1] >= 1,
                "filters",
                self.filters,
                f"each is (bytes, features) with 1 <= bytes <= max_bytes={self.max_bytes}",
            )

    @property
    def num_features(self) -> int:
        return sum(features for _, features in self.filters)


@dataclass(frozen=True, kw_only=True)
class FullOutput:
    """One softmax over the whole vocabulary, behind a projection if `dim` is not the decoder's."""

    dim: int
    """Width of the table."""

    def __post_init__(self) -> None:
        require_positive(dim=self.dim)


@dataclass(frozen=True, kw_only=True)
class AdaptiveOutput:
    """A softmax over the head's words and one class per tail band, and one softmax per tail."""

    cutoffs: tuple[int, ...]
    """Cumulative ends of all bands but the last."""
    dim: int
    """Width of the head; band i has floor(dim / factor**i)."""
    factor: float = 4
    """By how much each band is narrower than the one before."""
    tail_dropout: float = 0.0
    """Dropout after each tail projection (section 5.3), never on the head."""
    input_dropout: float = 0.0
    """Dropout on everything that enters the layer, head included: fairseq's, not the paper's."""

    def __post_init__(self) -> None:
        require_fraction("tail_dropout", self.tail_dropout)
        require_fraction("input_dropout", self.input_dropout)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The Transformer decoder (section 4.1); the defaults are the paper's for WikiText-103."""

    dim: int = 1024
    num_layers: int = 16
    num_heads: int = 16
    ffn_dim: int = 4096
    dropout: float = 0.3
    """On the input, and on what attention and feed-forward add to the residual."""
    attention_dropout: float = 0.1
    relu_dropout: float = 0.1
    """Inside the feed-forward, after its activation."""
    final_norm: bool = False
    """A norm after the last layer; the paper's parameter counts leave no room for one."""
    init: Literal["paper", "fairseq", "zero-output"] = "paper"
    """`paper`: Xavier everywhere, no bias. `fairseq`: that code's later rules, with PyTorch's own
    for the feed-forward. `zero-output`: as `paper`, but what adds to the residual starts at 0."""
    positions: Literal["sinusoidal", "rotary"] = "sinusoidal"
    qk_norm: bool = False
    """Normalise queries and keys per head."""
    activation: Literal["relu", "relu_squared"] = "relu"
    norm: Literal["layer", "rms"] = "layer"
    """`rms` has no weights."""
    bias: bool = True
    """Biases in attention and feed-forward."""

    def __post_init__(self) -> None:
        require_choices(self)
        require_positive(
            dim=self.dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            ffn_dim=self.ffn_dim,
        )
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
            f"rotary positions need an even head width, not {self.dim // self.num_heads}",
        )
        for name in ("dropout", "attention_dropout", "relu_dropout"):
            require_fraction(name, getattr(self, name))

    @property
    def num_norm_params(self) -> int:
        return 2 * self.dim if self.norm == "layer" else 0

    @property
    def num_layer_params(self) -> int:
        matrices = 4 * self.dim * self.dim + 2 * self.dim * self.ffn_dim
        biases = 5 * self.dim + self.ffn_dim if self.bias else 0
        return matrices + biases + 2 * self.num_norm_params


InputConfig = FixedInput | AdaptiveInput | CharacterInput
OutputConfig = FullOutput | AdaptiveOutput
