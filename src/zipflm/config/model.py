"""A whole model, and the paper's eight factorizations: input layer, output layer, tying and unit.

A model's label follows from its layers, never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zipflm.config.checks import Checked, Positive, require
from zipflm.config.decoder import DecoderConfig, TransformerDecoder
from zipflm.config.layers import (
    AdaptiveInput,
    AdaptiveOutput,
    CharacterInput,
    FixedInput,
    FullOutput,
    InputConfig,
    OutputConfig,
    Share,
    Tie,
)
from zipflm.config.text import Unit
from zipflm.model.bands import Bands


@dataclass(frozen=True)
class Factorization:
    """The kind of a model, all numbers left out."""

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
"""In the order in which everything lists them."""


def label_of(factorization: Factorization) -> str | None:
    """The paper's label, or None for a combination that it does not have.

    >>> label_of(Factorization(AdaptiveInput, AdaptiveOutput, is_tied=True))
    'ADP-T'
    >>> label_of(Factorization(AdaptiveInput, FullOutput)) is None
    True
    """
    return next((label for label, known in BY_LABEL.items() if known == factorization), None)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """A complete model: one input layer, one decoder, one output layer, and what they share."""

    vocab_size: Positive
    """Number of ids, specials and fillers included."""
    input: InputConfig
    decoder: DecoderConfig = field(default_factory=TransformerDecoder)
    output: OutputConfig
    tie: Tie = Tie.NONE
    """Which weights the output layer shares with the input layer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tie", Tie(self.tie))  # its value is welcome too
        super().__post_init__()
        # Bands check cutoffs and widths: here rather than when the model is built.
        checks: dict[str, Callable[[], object]] = {
            "input": lambda: (self.num_predicted, self.input_bands),
            "output": lambda: self.output_bands,
        }
        for name, check in checks.items():
            try:
                check()
            except ValueError as error:  # which begins with the name of the layer's field
                raise ValueError(f"{name}.{error}") from None
        require(
            self.tie == Tie.NONE or not self.input.has_sparse_gradients,
            "input.sparse",
            True,
            f"with tie={self.tie.value} the output layer gives every row a gradient; use tie=none, "
            "or leave input.sparse out",
        )
        if self.tie != Tie.NONE:
            into, out = self.decoder.dim, self.decoder.output_dim
            require(
                into == out or isinstance(self.output, FullOutput),
                "tie",
                self.tie.value,
                f"bands are shared where what the decoder reads, {into} wide, and returns, {out} "
                f"wide, are equally wide; end decoder.blocks with a width of {into}, or use "
                "tie=none",
            )
            self.output.check_tie(self.tie, self.input, self.vocab_size, self.decoder.output_dim)

    @property
    def input_bands(self) -> Bands | None:
        return self.input.bands(self.vocab_size)

    @property
    def output_bands(self) -> Bands | None:
        return self.output.bands(self.num_predicted)

    @property
    def num_predicted(self) -> int:
        """Ids that the output layer predicts; targets beyond them count as `<unk>`."""
        return self.input.num_predicted(self.vocab_size)

    def factorization(self, unit: Unit) -> str | None:
        """The paper's label for such a model, `SM` to `ADP-T`, of words or of pieces of words;
        None where the paper has no such model."""
        return label_of(
            Factorization(
                type(self.input), type(self.output), is_tied=self.tie != Tie.NONE, unit=unit
            )
        )

    def describe(self, unit: Unit) -> tuple[str, str]:
        """Input and output layer in the words of the paper's tables, of words or of pieces."""
        input = self.input.describe(self.vocab_size, unit)
        output = self.output.describe(self.num_predicted, unit)
        return input, output if self.tie == Tie.NONE else f"{output} (tied)"

    def num_params(self) -> int:
        """Number of trained parameters; a shared one counts once."""
        return sum(self.params_by_part().values())

    def params_by_part(self) -> dict[str, int]:
        """The same number, part by part in the order in which a token passes them."""
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

    def products_per_token(self, share: Share, block: int) -> float:
        """Multiply-adds to predict one token of a block of that length.

        A token meets the weights of its own band only; `share` says how common each band is.
        """
        decoder = self.decoder
        return (
            self.input.products(self.vocab_size, decoder.dim, share)
            + decoder.products(block)
            + self.output.products(self.num_predicted, decoder.output_dim, self.tie, share)
        )
