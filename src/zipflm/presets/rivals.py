"""Published models that the paper compares its own with, and presets with other decoders.

docs/reproduction/paper.md lists sources, published parameter counts and unpublished details.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zipflm.config import (
    AdamW,
    AdaptiveInput,
    AdaptiveOutput,
    BatchConfig,
    CharacterInput,
    Config,
    CosineCycles,
    FixedInput,
    FullOutput,
    GatedConvolutionDecoder,
    LSTMDecoder,
    Nesterov,
    QRNNDecoder,
    Tie,
    TrainingConfig,
    TransformerDecoder,
    WarmupDecay,
)

_WIKITEXT_VOCAB_SIZE = 267_744
_BILLION_WORD_VOCAB_SIZE = 793_304
_GATED_TRAINING = TrainingConfig(
    optimizer=Nesterov(weight_decay=5e-6), schedule=CosineCycles(), tokens_per_update=16_384
)
_BOTTLENECK_BLOCKS = (
    (5, 512, 0),
    *[(5, 512, 128)] * 3,
    *[(5, 1024, 512)] * 3,
    *[(5, 2048, 1024)] * 6,
)


def _gated(
    embedding: int, dim: int, blocks: tuple[tuple[int, int, int], ...], *cutoffs: int
) -> dict[str, Any]:
    decoder = GatedConvolutionDecoder(dim=dim, blocks=blocks)
    output = AdaptiveOutput(cutoffs=cutoffs, dim=decoder.output_dim)
    return {"input": FixedInput(dim=embedding), "decoder": decoder, "output": output}


MODELS: dict[str, dict[str, Config]] = {
    "wikitext-103": {
        "GCNN-8": Config(
            name="wikitext-103/GCNN-8",
            vocab_size=_WIKITEXT_VOCAB_SIZE,
            **_gated(280, 900, ((4, 900, 0),) * 8, 10_000, 20_000, 200_000),
            training=_GATED_TRAINING,
        ),
        "GCNN-14": Config(
            name="wikitext-103/GCNN-14",
            vocab_size=_WIKITEXT_VOCAB_SIZE,
            **_gated(
                280,
                850,
                (
                    *[(6, 850, 0)] * 3,
                    (1, 850, 0),
                    *[(5, 850, 0)] * 4,
                    (1, 850, 0),
                    *[(4, 850, 0)] * 3,
                    (4, 1024, 0),
                    (4, 2048, 0),
                ),
                10_000,
                20_000,
                200_000,
            ),
            training=_GATED_TRAINING,
        ),
        "LSTM-1024": Config(
            name="wikitext-103/LSTM-1024",
            vocab_size=_WIKITEXT_VOCAB_SIZE,
            input=FixedInput(dim=1024),
            decoder=LSTMDecoder(dim=1024, hidden_dim=1024),
            output=AdaptiveOutput(cutoffs=(20_000, 60_000), dim=1024),
            batches=BatchConfig(break_mode="stream", block=32, tokens=4096),
            training=TrainingConfig(
                optimizer=AdamW(),
                schedule=WarmupDecay(),
                max_updates=126_000,
                tokens_per_update=4096,
            ),
        ),
        "QRNN": Config(
            name="wikitext-103/QRNN",
            vocab_size=_WIKITEXT_VOCAB_SIZE,
            input=AdaptiveInput(cutoffs=(2800, 20_000, 76_000), dim=400, factor=1),
            decoder=QRNNDecoder(dim=400, hidden_dim=2500),
            output=AdaptiveOutput(cutoffs=(2800, 20_000, 76_000), dim=400, factor=1),
            tie=Tie.PROJECTIONS,
            batches=BatchConfig(break_mode="stream", block=140, tokens=8400),
            training=TrainingConfig(
                optimizer=AdamW(beta2=0.999),
                schedule=WarmupDecay(warmup=0.0, decay=2 / 14, final=0.1),
                max_updates=172_000,
                tokens_per_update=8400,
                clip_norm=0.25,
            ),
        ),
    },
    "billion-word": {
        "GCNN-14B": Config(
            name="billion-word/GCNN-14B",
            vocab_size=_BILLION_WORD_VOCAB_SIZE,
            **_gated(128, 512, (*_BOTTLENECK_BLOCKS, (5, 4096, 1024)), 10_000, 50_000, 200_000),
            batches=BatchConfig(break_mode="sentence", tokens=2048, eval_break_mode="sentence"),
            training=replace(_GATED_TRAINING, max_updates=975_000),
        ),
        "LSTM-8192-1024": Config(
            name="billion-word/LSTM-8192-1024",
            vocab_size=_BILLION_WORD_VOCAB_SIZE,
            input=CharacterInput(
                char_dim=16,
                filters=(
                    *((1, 32), (2, 32), (3, 64), (4, 128)),
                    *((5, 256), (6, 512), (7, 1024), (8, 2048)),
                ),
                highway_layers=2,
                markers=True,
            ),
            decoder=LSTMDecoder(dim=1024, hidden_dim=8192, num_layers=2),
            output=FullOutput(dim=1024),
            batches=BatchConfig(break_mode="stream", block=20, tokens=2560),
            training=TrainingConfig(
                optimizer=AdamW(lr=2e-4, table_lr=2e-4),
                schedule=WarmupDecay(),
                max_updates=100_000,
                tokens_per_update=32 * 2560,
                clip_norm=1.0,
            ),
        ),
    },
}
"""Published models by dataset and name."""

_MAX_STREAM_BLOCK = 128
"""Maximum block length that `with_decoder` sets for recurrent decoders. Shorter blocks give more
rows per batch, which are processed in parallel."""


def _gcnn(decoder: TransformerDecoder) -> GatedConvolutionDecoder:
    num_blocks = max(2, round(_size(decoder) / (8 * decoder.dim**2)))
    return GatedConvolutionDecoder(
        dim=decoder.dim, blocks=((4, decoder.dim, 0),) * num_blocks, dropout=decoder.dropout
    )


def _lstm(decoder: TransformerDecoder) -> LSTMDecoder:
    layers = min(2, decoder.num_layers)
    cells = _round_to_8(_size(decoder) / (layers * (9 * decoder.dim + 8)))
    return LSTMDecoder(
        dim=decoder.dim,
        hidden_dim=max(cells, decoder.dim),
        num_layers=layers,
        dropout=decoder.dropout,
    )


def _qrnn(decoder: TransformerDecoder) -> QRNNDecoder:
    # Three layers have about width * (9 * dim + 3 * width) weights. Solve for the width.
    linear = 9 * decoder.dim
    width = (math.sqrt(linear**2 + 12 * _size(decoder)) - linear) / 6
    return QRNNDecoder(
        dim=decoder.dim, hidden_dim=_round_to_8(width), num_layers=3, dropout=decoder.dropout
    )


def _size(decoder: TransformerDecoder) -> int:
    return sum(decoder.params().values())


def _round_to_8(width: float) -> int:
    return max(8, round(width / 8) * 8)


DECODERS: dict[str, Callable[[TransformerDecoder], Any]] = {
    "transformer": lambda decoder: decoder,
    "gcnn": _gcnn,
    "lstm": _lstm,
    "qrnn": _qrnn,
}


def with_decoder(config: Config, name: str) -> Config:
    """Replace the decoder of a preset with one of `DECODERS` with a similar number of parameters.

    Recurrent decoders keep their state from update to update, unless blocks are single sentences.
    """
    assert isinstance(config.decoder, TransformerDecoder)
    batches = config.batches
    if name in ("lstm", "qrnn") and batches.break_mode != "sentence":
        block = min(batches.block, _MAX_STREAM_BLOCK)
        batches = replace(batches, break_mode="stream", block=block)
    return replace(config, decoder=DECODERS[name](config.decoder), batches=batches)
