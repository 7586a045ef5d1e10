"""The paper's models: WikiText-103 and Billion Word."""

from __future__ import annotations

from dataclasses import replace

from zipflm.config import (
    BatchConfig,
    CharacterInput,
    CosineCycles,
    Tie,
    TrainingConfig,
    TransformerDecoder,
)
from zipflm.presets.family import Family

FAMILIES = {
    "wikitext-103": Family(
        purpose="the paper's, for 100 million words and 8 GPUs",
        is_of_the_paper=True,
        # 267,733 words and 4 special tokens, padded to a multiple of 8: the only such size that
        # gives every parameter count in the paper.
        vocab_size=267_744,
        bpe_vocab_size=33_337,
        decoder=TransformerDecoder(dropout=0.3, attention_dropout=0.1, relu_dropout=0.1),
        cutoffs=(20_000, 60_000),
        sm_dim=512,
        asm_dim=64,
        tail_dropout=0.2,
        characters=CharacterInput(highway_layers=1),
        batches=BatchConfig(),
        training=TrainingConfig(),
    ),
    "billion-word": Family(
        purpose="the paper's, for a billion words and 32 or 64 GPUs",
        is_of_the_paper=True,
        # Printed by the authors' code. The paper's parameter counts allow 793,183 to 793,495.
        vocab_size=793_304,
        bpe_vocab_size=32_347,
        decoder=TransformerDecoder(dropout=0.1, attention_dropout=0.1, relu_dropout=0.0),
        cutoffs=(60_000, 160_000),
        sm_dim=64,
        asm_dim=256,
        tail_dropout=0.0,
        characters=CharacterInput(highway_layers=2),
        tied=Tie.EMBEDDINGS,
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
    """Return the models of a dataset at one of `SIZES`, with the batches and training settings of
    this factorization."""
    base = FAMILIES[dataset]
    decoder = replace(base.decoder, **_DECODER_SIZES[size])  # type: ignore[arg-type]
    batches, training = base.batches, base.training
    if dataset == "wikitext-103" and factorization in ("SM", "SM-T"):
        # These two did not fit in memory, so the paper used a quarter of the tokens per device and
        # accumulated four batches per update.
        batches = replace(batches, tokens=1024)
        training = replace(training, tokens_per_update=8 * 4 * 1024)
    if dataset == "billion-word" and size != "base":
        # As in the variant `main-result`.
        training = replace(training, tokens_per_update=64 * 2048)
    return replace(base, decoder=decoder, batches=batches, training=training)
