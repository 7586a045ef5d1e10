"""`ModelConfig`, and the paper's eight factorizations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zipflm.config.checks import Checked, PositiveInt
from zipflm.config.decoder import DecoderConfig, TransformerDecoder
from zipflm.config.layers import (
    AdaptiveInput,
    AdaptiveOutput,
    CharacterInput,
    FixedInput,
    FullOutput,
    InputConfig,
    OutputConfig,
    TextShare,
    Tie,
)
from zipflm.config.text import Unit
from zipflm.model.bands import Bands


@dataclass(frozen=True)
class Factorization:
    """A model's representation of its vocabulary: the types of its input and output layers, whether
    they share weights, and the unit of its ids. Sizes are not part of it."""

    input: type[InputConfig]
    output: type[OutputConfig]
    is_tied: bool = False
    unit: Unit = "word"


BY_LABEL: dict[str, Factorization] = {
    "SM": Factorization(FixedInput, FullOutput),
    "SM-T": Factorization(FixedInput, FullOutput, is_tied=True),
    "BPE": Factorization(FixedInput, FullOutput, unit="bpe"),
    "BPE-T": Factorization(FixedInput, FullOutput, is_tied=True, unit="bpe"),
    "ASM": Factorization(FixedInput, AdaptiveOutput),
    "CNN": Factorization(CharacterInput, AdaptiveOutput),
    "ADP": Factorization(AdaptiveInput, AdaptiveOutput),
    "ADP-T": Factorization(AdaptiveInput, AdaptiveOutput, is_tied=True),
}
"""In the order used by all listings."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """A complete model: input layer, decoder, output layer and tying."""

    vocab_size: PositiveInt
    """Number of ids, including special tokens and unused ids that pad the vocabulary."""
    input: InputConfig
    decoder: DecoderConfig = field(default_factory=TransformerDecoder)
    output: OutputConfig
    tie: Tie = Tie.NONE
    """Which weights the output layer shares with the input layer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tie", Tie(self.tie))  # accepts the value as text
        super().__post_init__()
        # Creating the bands checks cutoffs and widths.
        checks: dict[str, Callable[[], object]] = {
            "input": lambda: (self.num_predicted, self.input_bands),
            "output": lambda: self.output_bands,
        }
        for name, check in checks.items():
            try:
                check()
            except ValueError as error:  # starts with the name of the field
                raise ValueError(f"{name}.{error}") from None
        self.require(
            "input.sparse",
            self.tie == Tie.NONE or not self.input.sparse,
            f"the tied output layer (tie={self.tie.value}) has dense gradients; use tie=none or "
            "input.sparse=false",
        )
        if self.tie != Tie.NONE and (problem := self._tie_problem()):
            raise ValueError(f"tie={self.tie.value!r}: {problem}")

    def _tie_problem(self) -> str | None:
        into, out = self.decoder.dim, self.decoder.output_dim
        if into != out and isinstance(self.output, AdaptiveOutput):
            return (
                f"sharing bands needs a decoder with equal input and output widths, not {into} and "
                f"{out}; end decoder.blocks with a width of {into}, or use tie=none"
            )
        return self.output.tie_problem(self.tie, self.input, self.vocab_size, out)

    @property
    def input_bands(self) -> Bands | None:
        return self.input.bands(self.vocab_size)

    @property
    def output_bands(self) -> Bands | None:
        return self.output.bands(self.num_predicted)

    @property
    def num_predicted(self) -> int:
        """Number of ids that the output layer predicts; later ids count as `<unk>`."""
        return self.input.num_predicted(self.vocab_size)

    def factorization(self, unit: Unit) -> str | None:
        """Return the paper's label, `SM` to `ADP-T`, or None if the paper has no such model."""
        factorization = Factorization(
            type(self.input), type(self.output), is_tied=self.tie != Tie.NONE, unit=unit
        )
        return next((label for label, known in BY_LABEL.items() if known == factorization), None)

    def describe(self, unit: Unit) -> tuple[str, str]:
        """Return descriptions of the input and output layers, as in the paper's tables."""
        input = self.input.describe(self.vocab_size, unit)
        output = self.output.describe(self.num_predicted, unit)
        return input, output if self.tie == Tie.NONE else f"{output} (tied)"

    def num_params(self) -> int:
        """Return the number of trainable parameters. Shared ones count once."""
        return sum(self.params_by_part().values())

    def params_by_part(self) -> dict[str, int]:
        """Return the number of trainable parameters of each part, from input to output."""
        decoder = self.decoder
        by_layer = {
            "input": self.input.params(self.vocab_size, decoder.dim),
            "decoder": decoder.params(),
            "output": self.output.params(self.num_predicted, decoder.output_dim, self.tie),
        }
        return {
            f"{layer}.{part}": count
            for layer, parts in by_layer.items()
            for part, count in parts.items()
        }

    def products_per_token(self, share: TextShare, block: int) -> float:
        """Return the average number of multiply-adds to predict one token in a block of this
        length.

        In an adaptive input layer, a token uses only the weights of its own band; in an adaptive
        output layer, also those of the head. `share` gives the frequency of each band.
        """
        decoder = self.decoder
        return (
            self.input.products(self.vocab_size, decoder.dim, share)
            + decoder.products(block)
            + self.output.products(self.num_predicted, decoder.output_dim, self.tie, share)
        )
