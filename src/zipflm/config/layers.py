"""Configs of input and output layers, with their parameter counts, costs and descriptions.

To add a layer, add a class here and to `InputConfig` or `OutputConfig`, its module to
`model.inputs` or `model.outputs`, and a case to `model.language_model`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

from zipflm.config.checks import ByKind, Checked, FractionBelowOne, NonNegativeInt, PositiveInt
from zipflm.config.text import Unit
from zipflm.messages import quoted
from zipflm.model.bands import Bands

TextShare = Callable[[int, int], float]
"""share(first, end) returns the fraction of the tokens in a text that have ids in [first, end)."""

NUM_BYTES = 257
"""Rows of a byte table: one for padding, then one per byte value."""
NUM_MARKERS = 2
"""Additional rows for the markers of the start and end of a word."""
_FIRST_WORD = 4
"""Id of the first word, after the special tokens."""


class Tie(StrEnum):
    """Which weights the output layer shares with the input layer (the paper's appendix A)."""

    NONE = "none"
    EMBEDDINGS = "embeddings"
    PROJECTIONS = "projections"
    """Embeddings and the projections of the tail bands: ADP-T on WikiText-103."""
    HEAD = "head"
    """Embeddings and all projections, including the head's."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"tie={quoted(value)}: choose from {', '.join(cls)}")

    @property
    def shares_embeddings(self) -> bool:
        return self != Tie.NONE

    @property
    def shares_tail_projections(self) -> bool:
        return self in (Tie.PROJECTIONS, Tie.HEAD)

    @property
    def shares_head_projection(self) -> bool:
        return self == Tie.HEAD


class Layer(Checked, ABC):
    """Base class of input and output layers."""

    def bands(self, vocab_size: int) -> Bands | None:
        """Return the bands of an adaptive layer, or None for other layers."""
        return None

    @abstractmethod
    def describe(self, vocab_size: int, unit: Unit) -> str:
        """Return a short description, as in the paper's tables."""


class InputLayer(Layer):
    """Base class of input layers. `width` is the width of the decoder's input."""

    spells_words = False
    """True if the vector of a word is computed from its bytes, once per unique word of a batch."""
    sparse = False
    """True if tables have sparse gradients."""

    def num_predicted(self, vocab_size: int) -> int:
        """Return the number of ids that the output layer predicts."""
        return vocab_size

    @abstractmethod
    def params(self, vocab_size: int, width: int) -> dict[str, int]:
        """Return the number of trainable parameters by part."""

    @abstractmethod
    def products(self, vocab_size: int, width: int, share: TextShare) -> float:
        """Return the average number of multiply-adds per token, given the frequency of ids."""


class OutputLayer(Layer):
    """Base class of output layers. `width` is the width of the decoder's output."""

    @abstractmethod
    def tie_problem(self, tie: Tie, input: InputConfig, vocab_size: int, width: int) -> str | None:
        """Return why the weights of `tie` cannot be shared with the input layer, or None."""

    @abstractmethod
    def params(self, vocab_size: int, width: int, tie: Tie) -> dict[str, int]:
        """Return the number of trainable parameters by part, without shared ones."""

    @abstractmethod
    def products(self, vocab_size: int, width: int, tie: Tie, share: TextShare) -> float:
        """Return the average number of multiply-adds per token, given the frequency of ids."""


@dataclass(frozen=True, kw_only=True)
class FixedInput(InputLayer):
    """One table for all words or subwords, projected if its width is not the decoder's."""

    dim: PositiveInt
    """Width of the table."""
    sparse: bool = False
    """Use sparse gradients: an update changes only the rows of the ids in its batches. Not for tied
    tables."""

    def params(self, vocab_size: int, width: int) -> dict[str, int]:
        return {"table": vocab_size * self.dim} | _projection_params(self.dim, width)

    def products(self, vocab_size: int, width: int, share: TextShare) -> float:
        return sum(_projection_params(self.dim, width).values())  # lookups are free

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}embedding {self.dim}"


@dataclass(frozen=True, kw_only=True)
class Banded(Layer):
    """Common fields of adaptive layers, which split the ids into bands by frequency. The first
    band, the head, has the most frequent ids; the others are the tails."""

    cutoffs: tuple[int, ...]
    """Cumulative sizes of all bands except the last."""
    dim: PositiveInt
    """Width of the head. Band i has width floor(dim / factor**i)."""
    factor: float = 4
    """Each band is narrower than the previous one by this factor."""

    def bands(self, vocab_size: int) -> Bands:
        return Bands(vocab_size, self.cutoffs, self.dim, self.factor)


@dataclass(frozen=True, kw_only=True)
class AdaptiveInput(Banded, InputLayer):
    """A table and a projection per band (section 3)."""

    sparse: bool = False
    """Use sparse gradients: an update changes only the rows of the ids in its batches. Not for tied
    tables."""

    def params(self, vocab_size: int, width: int) -> dict[str, int]:
        bands = self.bands(vocab_size)
        return _band_tables(bands) | _band_projections(bands, width)

    def products(self, vocab_size: int, width: int, share: TextShare) -> float:
        bands = self.bands(vocab_size)
        shares = (share(first, end) for first, end in pairwise(bands.edges))
        return sum(
            frequency * band_width * width
            for frequency, band_width in zip(shares, bands.widths, strict=True)
        )

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}adaptive {_band_sizes(self.bands(vocab_size))}"


@dataclass(frozen=True, kw_only=True)
class CharacterInput(InputLayer):
    """Convolutions over the bytes of a word, then highway layers and a projection (section 4.4)."""

    spells_words = True

    char_dim: PositiveInt = 128
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
    """Kernel size in bytes and number of features of each filter."""
    highway_layers: NonNegativeInt = 1
    """Number of highway layers. The paper uses 1 for WikiText-103 and 2 for Billion Word."""
    max_bytes: PositiveInt = 50
    """Number of bytes to read. Longer words are truncated, shorter ones padded."""
    markers: bool = False
    """Add a start and an end marker to the bytes of each word. Markers count toward
    `max_bytes`. The paper found no gain from them."""
    predicted_words: NonNegativeInt = 0
    """Predict only this many ids, including special tokens (0: all). Later words are still read
    as bytes, but predicted as `<unk>`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = all(1 <= size <= self.max_bytes and count >= 1 for size, count in self.filters)
        self.require(
            "filters",
            len(self.filters) > 0 and is_valid,
            f"give filters as bytes:features, with 1 to max_bytes={self.max_bytes} bytes",
        )
        self.require(
            "max_bytes",
            not self.markers or self.max_bytes > NUM_MARKERS,
            f"must exceed {NUM_MARKERS}, the number of markers; raise it or use markers=false",
        )

    def num_predicted(self, vocab_size: int) -> int:
        self.require(
            "predicted_words",
            not self.predicted_words or _FIRST_WORD < self.predicted_words <= vocab_size,
            f"must be {_FIRST_WORD + 1} to {vocab_size} (the number of ids), or 0 for all",
        )
        return self.predicted_words or vocab_size

    @property
    def num_symbols(self) -> int:
        """Rows of the byte table."""
        return NUM_BYTES + (NUM_MARKERS if self.markers else 0)

    @property
    def num_features(self) -> int:
        return sum(features for _, features in self.filters)

    def params(self, vocab_size: int, width: int) -> dict[str, int]:
        features = self.num_features
        return {
            "bytes": self.num_symbols * self.char_dim,
            "convolutions": sum(n * (k * self.char_dim + 1) for k, n in self.filters),
            "highway": self.highway_layers * 2 * features * (features + 1),
            "projection": width * (features + 1),
            "symbols": 2 * width,
        }

    def products(self, vocab_size: int, width: int, share: TextShare) -> float:
        parts = self.params(vocab_size, width)
        # An upper bound: a filter of k bytes has only max_bytes - k + 1 positions.
        return parts["convolutions"] * self.max_bytes + parts["highway"] + parts["projection"]

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}char-CNN"


InputConfig = Annotated[FixedInput | AdaptiveInput | CharacterInput, ByKind()]


@dataclass(frozen=True, kw_only=True)
class FullOutput(OutputLayer):
    """One softmax over the full vocabulary, after a projection if `dim` is not the decoder's
    width."""

    dim: PositiveInt
    """Width of the table."""

    def tie_problem(self, tie: Tie, input: InputConfig, vocab_size: int, width: int) -> str | None:
        if not isinstance(input, FixedInput):
            return _incompatible(input, self)
        if tie != Tie.EMBEDDINGS:
            return "layers without bands can only share embeddings; use tie=embeddings"
        if input.dim != self.dim:
            return (
                f"input.dim={input.dim} and output.dim={self.dim} cannot share one table; make "
                "them equal or use tie=none"
            )
        return None

    def params(self, vocab_size: int, width: int, tie: Tie) -> dict[str, int]:
        table = {} if tie.shares_embeddings else {"table": vocab_size * self.dim}
        return table | _projection_params(self.dim, width)

    def products(self, vocab_size: int, width: int, tie: Tie, share: TextShare) -> float:
        # The parameters of a shared table count as the input's, but its products are done here.
        return vocab_size * self.dim + sum(_projection_params(self.dim, width).values())

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}softmax {self.dim}"


@dataclass(frozen=True, kw_only=True)
class AdaptiveOutput(Banded, OutputLayer):
    """A softmax over the head's words and the tail bands, and one softmax per tail band."""

    tail_dropout: FractionBelowOne = 0.0
    """Dropout after each tail projection (section 5.4)."""
    input_dropout: FractionBelowOne = 0.0
    """Dropout on the input of the head and all tails. Used by fairseq, not by the paper."""
    head_projection: bool = False
    """Add an unshared projection to the head; tie=head shares the input's instead. The paper found
    both worse than none."""

    def tie_problem(self, tie: Tie, input: InputConfig, vocab_size: int, width: int) -> str | None:
        if not isinstance(input, AdaptiveInput):
            return _incompatible(input, self)
        theirs, ours = input.bands(vocab_size), self.bands(vocab_size)
        if theirs != ours:
            return (
                f"input and output must have the same bands, not {quoted(theirs)} and "
                f"{quoted(ours)}; use the same cutoffs, dim and factor for both, or tie=none"
            )
        if self.dim != width and not tie.shares_head_projection:
            return (
                f"output.dim={self.dim} must equal decoder.dim={width}; or use tie=head, which "
                "projects hidden vectors to output.dim"
            )
        if self.head_projection and tie.shares_head_projection:
            return (
                "the head already shares the input's projection; use tie=projections or "
                "output.head_projection=false"
            )
        return None

    def params(self, vocab_size: int, width: int, tie: Tie) -> dict[str, int]:
        bands = self.bands(vocab_size)
        parts = {"clusters": bands.num_tails * bands.dim}
        if self.head_projection:
            parts["head_projection"] = bands.dim**2
        if not tie.shares_embeddings:
            parts |= _projection_params(bands.dim, width) | _band_tables(bands)
        if not tie.shares_tail_projections:
            projections = _band_projections(bands, bands.dim)
            del projections["projection.band0"]  # the head has none
            parts |= projections
        return parts

    def products(self, vocab_size: int, width: int, tie: Tie, share: TextShare) -> float:
        bands = self.bands(vocab_size)
        has_projection = tie.shares_head_projection or bands.dim != width
        head = bands.dim * (bands.sizes[0] + bands.num_tails + (width if has_projection else 0))
        head += bands.dim**2 if self.head_projection else 0
        # An untied layer projects once for head and tails; tied tails use the decoder's output.
        tail_input = width if tie.shares_embeddings else bands.dim
        tails = list(zip(pairwise(bands.edges), bands.sizes, bands.widths, strict=True))[1:]
        return head + sum(
            share(*ids) * band_width * (size + tail_input) for ids, size, band_width in tails
        )

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"adaptive {_band_sizes(self.bands(vocab_size))}"


OutputConfig = Annotated[FullOutput | AdaptiveOutput, ByKind()]


def _projection_params(dim: int, width: int) -> dict[str, int]:
    return {"projection": dim * width} if dim != width else {}


def _band_tables(bands: Bands) -> dict[str, int]:
    pairs = zip(bands.sizes, bands.widths, strict=True)
    return {f"embedding.band{band}": size * width for band, (size, width) in enumerate(pairs)}


def _band_projections(bands: Bands, width: int) -> dict[str, int]:
    pairs = enumerate(bands.widths)
    return {f"projection.band{band}": band_width * width for band, band_width in pairs}


def _band_sizes(bands: Bands) -> str:
    return "/".join(f"{size / 1000:.3g}K" for size in bands.sizes)


def _prefix(unit: Unit) -> str:
    return "BPE " if unit == "bpe" else ""


def _incompatible(input: InputConfig, output: OutputConfig) -> str:
    return (
        f"{type(input).__name__} and {type(output).__name__} cannot share weights; use tie=none, "
        "or FixedInput with FullOutput, or AdaptiveInput with AdaptiveOutput"
    )
