"""The paper's eight factorizations: a choice of input layer, output layer, tying and unit each.

What a model is called follows from what it is, never the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

from zipflm.config.layers import (
    AdaptiveInput,
    AdaptiveOutput,
    CharacterInput,
    FixedInput,
    FullOutput,
    InputConfig,
    OutputConfig,
)
from zipflm.config.text import Unit


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
