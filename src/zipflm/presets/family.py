"""Families: the eight factorizations (see `config.model`) with common settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zipflm.config import (
    AdaptiveInput,
    AdaptiveOutput,
    BatchConfig,
    CharacterInput,
    Config,
    FixedInput,
    FullOutput,
    InputConfig,
    OutputConfig,
    Tie,
    TrainingConfig,
    TransformerDecoder,
)
from zipflm.config.model import BY_LABEL


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Settings of the input and output layers of all factorizations."""

    cutoffs: tuple[int, ...]
    dim: int
    """Width of the adaptive head, and of BPE tables."""
    sm_dim: int
    """Width of the tables of SM and SM-T."""
    asm_dim: int
    """Width of the input table of ASM."""
    tail_dropout: float
    characters: CharacterInput
    tied: Tie = Tie.PROJECTIONS
    """Tying of ADP-T."""

    def config_fields(self, factorization: str) -> dict[str, Any]:
        """Return `input`, `output` and `tie` of a config."""
        input, output, tie = self._by_factorization()[factorization]
        return {"input": input, "output": output, "tie": tie}

    def _by_factorization(self) -> dict[str, tuple[InputConfig, OutputConfig, Tie]]:
        words = FixedInput(dim=self.sm_dim), FullOutput(dim=self.sm_dim)
        pieces = FixedInput(dim=self.dim), FullOutput(dim=self.dim)
        adaptive_in = AdaptiveInput(cutoffs=self.cutoffs, dim=self.dim)
        adaptive_out = AdaptiveOutput(
            cutoffs=self.cutoffs, dim=self.dim, tail_dropout=self.tail_dropout
        )
        return {
            "SM": (*words, Tie.NONE),
            "SM-T": (*words, Tie.EMBEDDINGS),
            "BPE": (*pieces, Tie.NONE),
            "BPE-T": (*pieces, Tie.EMBEDDINGS),
            "ASM": (FixedInput(dim=self.asm_dim), adaptive_out, Tie.NONE),
            "CNN": (self.characters, adaptive_out, Tie.NONE),
            "ADP": (adaptive_in, adaptive_out, Tie.NONE),
            "ADP-T": (adaptive_in, adaptive_out, self.tied),
        }


@dataclass(frozen=True, kw_only=True)
class Family:
    """The eight models of one dataset."""

    vocab_size: int
    bpe_vocab_size: int
    decoder: TransformerDecoder
    layers: Layers
    batches: BatchConfig
    training: TrainingConfig

    def member(self, factorization: str, name: str) -> Config:
        """Return the config of one factorization."""
        unit = BY_LABEL[factorization].unit
        return Config(
            name=name,
            vocab_size=self.bpe_vocab_size if unit == "bpe" else self.vocab_size,
            decoder=self.decoder,
            batches=replace(self.batches, unit=unit),
            training=self.training,
            **self.layers.config_fields(factorization),
        )
