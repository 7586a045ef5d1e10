"""The paper's models: WikiText-103 and Billion Word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zipflm.config import (
    BatchConfig,
    CharacterInput,
    CosineCycles,
    Tie,
    TrainingConfig,
    TransformerDecoder,
)
from zipflm.presets.family import Family, Layers


@dataclass(frozen=True, kw_only=True)
class _Text:
    """What the paper's two benchmarks differ in."""

    vocab_size: int
    bpe_vocab_size: int
    cutoffs: tuple[int, ...]
    sm_dim: int
    asm_dim: int
    highway_layers: int
    tied: Tie
    tail_dropout: float
    dropout: Mapping[str, float]
    batches: BatchConfig
    training: TrainingConfig


_TEXTS = {
    "wikitext-103": _Text(
        # 267,733 words and 4 specials, padded to a multiple of 8: the one size of that kind with
        # which every count the paper prints comes out.
        vocab_size=267_744,
        bpe_vocab_size=33_337,
        cutoffs=(20_000, 60_000),
        sm_dim=512,
        asm_dim=64,
        highway_layers=1,
        tied=Tie.PROJECTIONS,
        tail_dropout=0.2,
        dropout={"dropout": 0.3, "attention_dropout": 0.1, "relu_dropout": 0.1},
        batches=BatchConfig(),
        training=TrainingConfig(),
    ),
    "billion-word": _Text(
        # The paper's counts allow 793,183 to 793,495; this is the size the authors' code prints.
        vocab_size=793_304,
        bpe_vocab_size=32_347,
        cutoffs=(60_000, 160_000),
        sm_dim=64,
        asm_dim=256,
        highway_layers=2,
        tied=Tie.EMBEDDINGS,
        tail_dropout=0.0,
        dropout={"dropout": 0.1, "attention_dropout": 0.1, "relu_dropout": 0.0},
        batches=BatchConfig(break_mode="sentence", tokens=2048, eval_break_mode="sentence"),
        training=TrainingConfig(
            schedule=CosineCycles(first_cycle=137_000, shrink=0.6), max_updates=975_000
        ),
    ),
}

_DECODER_SIZES: dict[str, dict[str, int]] = {
    "base": {},
    "large": {"num_layers": 20, "ffn_dim": 6144},
    "very-large": {"num_layers": 24, "ffn_dim": 8192, "dim": 1536},
}
SIZES = tuple(_DECODER_SIZES)


def family(dataset: str, factorization: str, size: str) -> Family:
    """The models of a text at one of `SIZES`, trained as the paper trains this factorization."""
    text = _TEXTS[dataset]
    decoder = TransformerDecoder(**_DECODER_SIZES[size], **text.dropout)  # type: ignore[arg-type]
    batches, training = text.batches, text.training
    if dataset == "wikitext-103" and factorization in ("SM", "SM-T"):
        # These two did not fit: a quarter of the tokens a device, four batches an update.
        batches = replace(batches, tokens=1024)
        training = replace(training, tokens_per_update=8 * 4 * 1024)
    if dataset == "billion-word" and size != "base":
        # Main results: see the variant of that name.
        training = replace(training, tokens_per_update=64 * 2048)
    return Family(
        vocab_size=text.vocab_size,
        bpe_vocab_size=text.bpe_vocab_size,
        decoder=decoder,
        layers=Layers(
            cutoffs=text.cutoffs,
            dim=decoder.dim,
            sm_dim=text.sm_dim,
            asm_dim=text.asm_dim,
            tail_dropout=text.tail_dropout,
            characters=CharacterInput(highway_layers=text.highway_layers),
            tied=text.tied,
        ),
        batches=batches,
        training=training,
    )
