"""The input and output layers as values; each answers for itself what only it knows.

`InputLayer` and `OutputLayer` list the questions, so that nobody else has to tell layers apart to
count, to describe or to tie them. A new layer is a class here, one in `model.inputs` or
`model.outputs` with its line in `model.language_model`, and an entry in `InputConfig` or
`OutputConfig`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, NoReturn

from zipflm.config.checks import ByKind, Checked, Count, Fraction, Positive, require
from zipflm.config.text import Unit
from zipflm.messages import quoted
from zipflm.model.bands import Bands

Share = Callable[[int, int], float]
"""share(first, end): which part of the running text has ids from `first` up to, not including,
`end`."""

NUM_BYTES = 257
"""Rows of a table of bytes: 256 values, moved up by one, and 0 for padding."""
NUM_MARKERS = 2
"""Further rows for the start and the end of a word."""
_FIRST_WORD = 4
"""Id; the specials come before it."""


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
    """The questions to any layer; `vocab_size` is the number of ids."""

    def bands(self, vocab_size: int) -> Bands | None:
        """How the vocabulary is cut into bands, if it is."""
        return None

    @abstractmethod
    def describe(self, vocab_size: int, unit: Unit) -> str:
        """A few words for a table, in the paper's manner."""


class InputLayer(Layer):
    """The questions to an input layer; `width` is the decoder's."""

    @property
    def spells_words(self) -> bool:
        """Whether a vector is computed from a word's spelling, which is worth doing once a batch;
        others look it up."""
        return False

    @property
    def has_sparse_gradients(self) -> bool:
        """Whether a table's gradient names the rows that it has, instead of having all of them."""
        return False

    def num_predicted(self, vocab_size: int) -> int:
        """Number of ids, from the first, that the output layer predicts."""
        return vocab_size

    @abstractmethod
    def params(self, vocab_size: int, width: int) -> dict[str, int]:
        """Number of trained parameters by part."""

    @abstractmethod
    def products(self, vocab_size: int, width: int, share: Share) -> float:
        """Multiply-adds for one token, on average over a text with that share of each id."""


class OutputLayer(Layer):
    """The questions to an output layer; `width` is the decoder's, `tie` what the model shares."""

    @abstractmethod
    def check_tie(self, tie: Tie, input: InputConfig, vocab_size: int, width: int) -> None:
        """ValueError unless it can share these weights with that input layer."""

    @abstractmethod
    def params(self, vocab_size: int, width: int, tie: Tie) -> dict[str, int]:
        """Number of trained parameters by part, without those of the input layer that it uses."""

    @abstractmethod
    def products(self, vocab_size: int, width: int, tie: Tie, share: Share) -> float:
        """Multiply-adds for one token, on average over a text with that share of each id."""


@dataclass(frozen=True, kw_only=True)
class FixedInput(InputLayer):
    """One table for all words or sub-words, projected to the decoder's width if it differs."""

    dim: Positive
    """Width of the table."""
    sparse: bool = False
    """Whether an update costs only the rows whose words are in its batches, and leaves the others
    as they are; for tables that the output layer does not share."""

    @property
    def has_sparse_gradients(self) -> bool:
        return self.sparse

    def params(self, vocab_size: int, width: int) -> dict[str, int]:
        return {"table": vocab_size * self.dim} | _projection_params(self.dim, width)

    def products(self, vocab_size: int, width: int, share: Share) -> float:
        return sum(_projection_params(self.dim, width).values())  # looking up costs nothing

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}embedding {self.dim}"


@dataclass(frozen=True, kw_only=True)
class Banded(Layer):
    """What adaptive layers have in common: words by frequency, in ever narrower bands."""

    cutoffs: tuple[int, ...]
    """Cumulative ends of all bands but the last."""
    dim: Positive
    """Width of the head; band i has floor(dim / factor**i)."""
    factor: float = 4
    """By how much each band is narrower than the one before."""

    def bands(self, vocab_size: int) -> Bands:
        return Bands(vocab_size, self.cutoffs, self.dim, self.factor)


@dataclass(frozen=True, kw_only=True)
class AdaptiveInput(Banded, InputLayer):
    """A table and a projection per band (section 3)."""

    sparse: bool = False
    """Whether an update costs only the rows whose words are in its batches, and leaves the others
    as they are; for tables that the output layer does not share."""

    @property
    def has_sparse_gradients(self) -> bool:
        return self.sparse

    def params(self, vocab_size: int, width: int) -> dict[str, int]:
        bands = self.bands(vocab_size)
        return _band_tables(bands) | _band_projections(bands, width)

    def products(self, vocab_size: int, width: int, share: Share) -> float:
        bands = self.bands(vocab_size)
        shares = (share(first, end) for first, end in pairwise(bands.edges))
        return sum(part * own * width for part, own in zip(shares, bands.widths, strict=True))

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}adaptive {_band_sizes(self.bands(vocab_size))}"


@dataclass(frozen=True, kw_only=True)
class CharacterInput(InputLayer):
    """A convolution over the bytes of each word, highway layers, a projection (section 4.4)."""

    char_dim: Positive = 128
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
    highway_layers: Count = 1
    """The paper uses 1 for WikiText-103 and 2 for Billion Word."""
    max_bytes: Positive = 50
    """Longer words are cut, shorter ones padded."""
    markers: bool = False
    """Put a start and an end marker around the bytes of each word; they count as bytes. The paper
    found no gain from them."""
    predicted_words: Count = 0
    """Predict this many ids, specials included, and read words beyond them by their bytes instead
    of as `<unk>`, which stays what is predicted for them (0: predict every id of the data)."""

    @property
    def spells_words(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.filters) > 0, "filters", self.filters, "give at least one filter")
        for pair in self.filters:
            require(
                len(pair) == 2 and 1 <= pair[0] <= self.max_bytes and pair[1] >= 1,
                "filters",
                self.filters,
                f"each is (bytes, features) with 1 <= bytes <= max_bytes={self.max_bytes} and at "
                "least 1 feature",
            )
        require(
            not self.markers or self.max_bytes > NUM_MARKERS,
            "max_bytes",
            self.max_bytes,
            "the markers leave no room for a word; give more, or leave out markers",
        )

    def num_predicted(self, vocab_size: int) -> int:
        require(
            not self.predicted_words or _FIRST_WORD < self.predicted_words <= vocab_size,
            "predicted_words",
            self.predicted_words,
            f"give {_FIRST_WORD + 1} to {vocab_size}, the number of ids, or 0 for all",
        )
        return self.predicted_words or vocab_size

    @property
    def num_symbols(self) -> int:
        """Rows of the table of bytes."""
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

    def products(self, vocab_size: int, width: int, share: Share) -> float:
        parts = self.params(vocab_size, width)
        # Every filter is applied at every byte, padding included.
        return parts["convolutions"] * self.max_bytes + parts["highway"] + parts["projection"]

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}char-CNN"


InputConfig = Annotated[FixedInput | AdaptiveInput | CharacterInput, ByKind()]


@dataclass(frozen=True, kw_only=True)
class FullOutput(OutputLayer):
    """One softmax over the whole vocabulary, behind a projection if `dim` is not the decoder's."""

    dim: Positive
    """Width of the table."""

    def check_tie(self, tie: Tie, input: InputConfig, vocab_size: int, width: int) -> None:
        if not isinstance(input, FixedInput):
            _refuse_strangers(tie, input, self)
        require(
            tie == Tie.EMBEDDINGS,
            "tie",
            tie.value,
            "one table without bands shares its embeddings only; use tie=embeddings",
        )
        require(
            input.dim == self.dim,
            "tie",
            tie.value,
            f"input.dim={input.dim} and output.dim={self.dim} cannot share one table; make them "
            "equal or use tie=none",
        )

    def params(self, vocab_size: int, width: int, tie: Tie) -> dict[str, int]:
        table = {} if tie.shares_embeddings else {"table": vocab_size * self.dim}
        return table | _projection_params(self.dim, width)

    def products(self, vocab_size: int, width: int, tie: Tie, share: Share) -> float:
        # A shared table is counted with the input, where it costs nothing, but scores here.
        return vocab_size * self.dim + sum(_projection_params(self.dim, width).values())

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"{_prefix(unit)}softmax {self.dim}"


@dataclass(frozen=True, kw_only=True)
class AdaptiveOutput(Banded, OutputLayer):
    """A softmax over the head's words and one class per tail band, and one softmax per tail."""

    tail_dropout: float | tuple[float, ...] = 0.0
    """Dropout after each tail projection (section 5.4), never on the head: one rate for all tails,
    or one per tail (0.1,0.2)."""
    input_dropout: Fraction = 0.0
    """Dropout on everything that enters the layer, head included: fairseq's, not the paper's."""
    head_projection: bool = False
    """Project what the head scores with a matrix of its own; tie=head shares the input's instead.
    The paper found both worse than none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = self.tail_dropout
        if isinstance(rates, tuple):
            tails = len(self.cutoffs)
            require(
                len(rates) == tails,
                "tail_dropout",
                rates,
                f"give one rate, or one per tail ({tails})",
            )
        for rate in rates if isinstance(rates, tuple) else (rates,):
            require(0 <= rate < 1, "tail_dropout", rate, "must lie in [0, 1)")

    def check_tie(self, tie: Tie, input: InputConfig, vocab_size: int, width: int) -> None:
        if not isinstance(input, AdaptiveInput):
            _refuse_strangers(tie, input, self)
        theirs, ours = input.bands(vocab_size), self.bands(vocab_size)
        require(
            theirs == ours,
            "tie",
            tie.value,
            f"input and output must have the same bands, not {quoted(theirs)} and {quoted(ours)}; "
            "give both the same cutoffs, dim and factor, or use tie=none",
        )
        require(
            tie.shares_head_projection or self.dim == width,
            "tie",
            tie.value,
            f"the head is scored without a projection, so output.dim={self.dim} must be "
            f"decoder.dim={width}; or use tie=head, which projects the head too",
        )
        require(
            not (self.head_projection and tie.shares_head_projection),
            "output.head_projection",
            True,
            "tie=head shares the input's projection; use tie=projections, or leave it out",
        )

    def params(self, vocab_size: int, width: int, tie: Tie) -> dict[str, int]:
        bands = self.bands(vocab_size)
        parts = {"clusters": bands.num_tails * bands.dim}
        if self.head_projection:
            parts["head_projection"] = bands.dim**2
        if not tie.shares_embeddings:
            parts |= _projection_params(bands.dim, width) | _band_tables(bands)
        if not tie.shares_tail_projections:
            projections = _band_projections(bands, bands.dim)
            del projections["projection.band0"]  # the head has none of its own
            parts |= projections
        return parts

    def products(self, vocab_size: int, width: int, tie: Tie, share: Share) -> float:
        bands = self.bands(vocab_size)
        has_projection = tie.shares_head_projection or bands.dim != width
        head = bands.dim * (bands.sizes[0] + bands.num_tails + (width if has_projection else 0))
        head += bands.dim**2 if self.head_projection else 0
        # An untied layer projects once for head and tails; a tied tail reads the decoder itself.
        tail_input = width if tie.shares_embeddings else bands.dim
        tails = list(zip(pairwise(bands.edges), bands.sizes, bands.widths, strict=True))[1:]
        return head + sum(share(*ids) * own * (size + tail_input) for ids, size, own in tails)

    def describe(self, vocab_size: int, unit: Unit) -> str:
        return f"adaptive {_band_sizes(self.bands(vocab_size))}"


OutputConfig = Annotated[FullOutput | AdaptiveOutput, ByKind()]


def _projection_params(dim: int, width: int) -> dict[str, int]:
    """A matrix between a table and the decoder, where their widths differ."""
    return {"projection": dim * width} if dim != width else {}


def _band_tables(bands: Bands) -> dict[str, int]:
    pairs = zip(bands.sizes, bands.widths, strict=True)
    return {f"embedding.band{band}": size * width for band, (size, width) in enumerate(pairs)}


def _band_projections(bands: Bands, width: int) -> dict[str, int]:
    """The matrices between each band's width and `width`."""
    return {f"projection.band{band}": own * width for band, own in enumerate(bands.widths)}


def _band_sizes(bands: Bands) -> str:
    return "/".join(f"{size / 1000:.3g}K" for size in bands.sizes)


def _prefix(unit: Unit) -> str:
    return "BPE " if unit == "bpe" else ""


def _refuse_strangers(tie: Tie, input: InputConfig, output: OutputConfig) -> NoReturn:
    raise ValueError(
        f"tie={tie.value!r}: {type(input).__name__} and {type(output).__name__} have no weights in "
        "common; use tie=none, or make both adaptive or both plain tables"
    )
