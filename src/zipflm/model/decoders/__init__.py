"""Decoders: `decoder(embedded_BTD, state) -> hidden_BTD, state`.

Position t sees positions up to t and the earlier words in the state. The state of a Transformer is
a cache (`model.kv_cache`) that is extended in place. The other decoders take and return `States` of
constant size: tensors with one row per sequence.
"""

from __future__ import annotations

from typing import assert_never

from zipflm.config import (
    DecoderConfig,
    GatedConvolutionDecoder,
    LSTMDecoder,
    QRNNDecoder,
    TransformerDecoder,
)
from zipflm.model.decoders.constant_state import ConstantStateDecoder
from zipflm.model.decoders.gated_convolution import GatedConvolution
from zipflm.model.decoders.lstm import LSTM
from zipflm.model.decoders.qrnn import QRNN
from zipflm.model.decoders.transformer import Transformer

Decoder = Transformer | ConstantStateDecoder


def build_decoder(config: DecoderConfig) -> Decoder:
    match config:
        case TransformerDecoder():
            return Transformer(config)
        case GatedConvolutionDecoder():
            return GatedConvolution(config)
        case LSTMDecoder():
            return LSTM(config)
        case QRNNDecoder():
            return QRNN(config)
        case _:
            assert_never(config)
