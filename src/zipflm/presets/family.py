"""Families: the eight factorizations (see `config.model`) of one dataset, with common settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
class Family:
    """The eight models of one dataset."""

    purpose: str
    """The column `for` of `zipflm info`."""
    is_of_the_paper: bool = False
    """True if cutoffs are fixed, as in the paper. Otherwise they are scaled with the vocabulary."""
    is_for_a_cpu: bool = False
    """True if the models are small enough to train on a CPU, without compilation."""
    vocab_size: int
    bpe_vocab_size: int
    decoder: TransformerDecoder
    """Its width is also that of the adaptive head and of BPE tables."""
    cutoffs: tuple[int, ...]
    sm_dim: int
    """Width of the tables of SM and SM-T."""
    asm_dim: int
    """Width of the input table of ASM."""
    tail_dropout: float
    characters: CharacterInput
    tied: Tie = Tie.PROJECTIONS
    """Tying of ADP-T."""
    batches: BatchConfig
    training: TrainingConfig

    def member(self, factorization: str, name: str) -> Config:
        """Return the config of one factorization."""
        unit = BY_LABEL[factorization].unit
        input, output, tie = self._layers()[factorization]
        return Config(
            name=name,
            vocab_size=self.bpe_vocab_size if unit == "bpe" else self.vocab_size,
            input=input,
            decoder=self.decoder,
            output=output,
            tie=tie,
            batches=replace(self.batches, unit=unit),
            training=self.training,
        )

    def _layers(self) -> dict[str, tuple[InputConfig, OutputConfig, Tie]]:
        dim = self.decoder.dim
        words = FixedInput(dim=self.sm_dim), FullOutput(dim=self.sm_dim)
        pieces = FixedInput(dim=dim), FullOutput(dim=dim)
        adaptive_in = AdaptiveInput(cutoffs=self.cutoffs, dim=dim)
        adaptive_out = AdaptiveOutput(cutoffs=self.cutoffs, dim=dim, tail_dropout=self.tail_dropout)
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
