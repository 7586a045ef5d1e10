"""Smaller models than the paper's, for less text and less time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zipflm.config import (
    AdamW,
    BatchConfig,
    CharacterInput,
    CosineCycles,
    Muon,
    TrainingConfig,
    TransformerDecoder,
    WarmupDecay,
)
from zipflm.presets.family import Family

MODERN_DECODER: dict[str, Any] = {
    "positions": "rotary",
    "qk_norm": True,
    "activation": "relu_squared",
    "norm": "rms",
    "final_norm": True,
    "init": "zero-output",
}
"""Modern decoder settings, with which training needs far fewer updates."""

_DECODER = TransformerDecoder(
    num_heads=4, dropout=0.0, attention_dropout=0.0, relu_dropout=0.0, **MODERN_DECODER
)
_CPU_TRAINING = TrainingConfig(
    schedule=WarmupDecay(),
    clip_norm=1.0,
    dtype="float32",
    report_every=10,
    validate_every=20,
    validate_share=0.1,
    checkpoint_every=120,
)
_MUON = {"beta2": 0.999, "weight_decay": 0.1, "matrix_weight_decay": 0.1}

FAMILIES = {
    # For twenty epochs on texts of two million words, which need strong regularization. Tuned on
    # ADP-T and SM-T (docs/development/experiments.md). The head covers 84% of the tokens,
    # the head and the first tail together 95%.
    "wikitext-2": Family(
        purpose="texts of a few million words; minutes on a GPU",
        vocab_size=33_280,
        bpe_vocab_size=8152,
        decoder=TransformerDecoder(
            dim=512,
            num_layers=4,
            num_heads=8,
            ffn_dim=2048,
            dropout=0.4,
            attention_dropout=0.1,
            relu_dropout=0.1,
            bias=False,
            **MODERN_DECODER,
        ),
        cutoffs=(4000, 14_000),
        sm_dim=256,
        asm_dim=32,
        tail_dropout=0.2,
        characters=CharacterInput(
            char_dim=32, filters=((1, 32), (2, 64), (3, 128), (4, 192), (5, 192), (6, 192))
        ),
        batches=BatchConfig(tokens=16_384),
        training=TrainingConfig(
            optimizer=Muon(weight_decay=0.3, matrix_weight_decay=0.3),
            schedule=WarmupDecay(),
            max_updates=2500,
            tokens_per_update=16_384,
            clip_norm=1.0,
            dtype="bfloat16",
            compile=True,
            validate_every=250,
            validate_share=0.2,
            checkpoint_every=1000,
        ),
    ),
    # For a few sentences, one per line, as in the examples of the documentation.
    "toy": Family(
        purpose="a handful of sentences; seconds on a CPU",
        is_for_a_cpu=True,
        vocab_size=24,
        bpe_vocab_size=16,
        decoder=replace(_DECODER, dim=32, num_layers=1, ffn_dim=64),
        cutoffs=(12,),
        sm_dim=16,
        asm_dim=8,
        tail_dropout=0.0,
        characters=CharacterInput(char_dim=8, filters=((1, 8), (2, 16), (3, 24))),
        batches=BatchConfig(break_mode="sentence", block=64, tokens=256, eval_block=64),
        training=replace(
            _CPU_TRAINING,
            optimizer=AdamW(lr=0.01, table_lr=0.01),
            max_updates=60,
            tokens_per_update=256,
        ),
    ),
    "tiny": Family(
        purpose="quick experiments; a minute on a CPU",
        is_for_a_cpu=True,
        vocab_size=4000,
        bpe_vocab_size=1000,
        decoder=TransformerDecoder(
            dim=64,
            num_layers=2,
            num_heads=4,
            ffn_dim=256,
            dropout=0.1,
            attention_dropout=0.0,
            relu_dropout=0.0,
        ),
        cutoffs=(400, 1600),
        sm_dim=32,
        asm_dim=16,
        tail_dropout=0.1,
        characters=CharacterInput(char_dim=16, filters=((1, 16), (2, 32), (3, 48), (4, 64))),
        batches=BatchConfig(block=64, tokens=1024, eval_block=64),
        training=TrainingConfig(
            schedule=CosineCycles(warmup_updates=20, first_cycle=180),
            max_updates=200,
            tokens_per_update=1024,
            dtype="float32",
            validate_every=20,
        ),
    ),
    # For the corpus state-of-the-union (16 thousand ids, 1.8 million tokens) on two CPU cores. All
    # eight factorizations train in a few minutes. The paper's optimizer would need thousands of
    # updates.
    "demo": Family(
        purpose="a first comparison on a small text; minutes on a CPU",
        is_for_a_cpu=True,
        vocab_size=15_984,
        bpe_vocab_size=4136,
        decoder=replace(_DECODER, dim=128, num_layers=2, ffn_dim=512),
        cutoffs=(1000, 5000),
        sm_dim=64,
        asm_dim=16,
        tail_dropout=0.0,
        characters=CharacterInput(char_dim=16, filters=((1, 16), (2, 32), (3, 64), (4, 96))),
        batches=BatchConfig(block=64, tokens=1024, eval_block=64),
        training=replace(
            _CPU_TRAINING,
            optimizer=Muon(matrix_lr=5e-3, table_lr=1e-2, lr=3e-3, **_MUON),
            max_updates=240,
            tokens_per_update=1024,
        ),
    ),
    # For texts of one to three million words on two CPU cores: a useful model in 10 to 30 minutes.
    # On the corpus state-of-the-union, 3,000 updates are about 3.4 epochs.
    "small": Family(
        purpose="texts of 1 to 3 million words; a quarter of an hour on a CPU",
        is_for_a_cpu=True,
        vocab_size=15_984,
        bpe_vocab_size=4136,
        decoder=replace(_DECODER, dim=192, num_layers=3, ffn_dim=768, dropout=0.1, bias=False),
        cutoffs=(2000, 6000),
        sm_dim=96,
        asm_dim=24,
        tail_dropout=0.1,
        characters=CharacterInput(
            char_dim=16, filters=((1, 16), (2, 32), (3, 64), (4, 96), (5, 96))
        ),
        batches=BatchConfig(block=128, tokens=2048, eval_block=128),
        training=replace(
            _CPU_TRAINING,
            optimizer=Muon(matrix_lr=3e-3, table_lr=6e-3, lr=2e-3, **_MUON),
            max_updates=3000,
            tokens_per_update=2048,
            report_every=20,
            validate_every=250,
            validate_share=0.2,
            checkpoint_every=1000,
        ),
    ),
}
