"""The decoders: `decoder(hidden_BTD, state) -> hidden_BTD, state`, from embedded words to hidden
vectors. Position t sees positions up to t, and the words before them that the state stands for.

A Transformer's state is its cache (`model.kv_cache`), to which words are added in place. The other
decoders have states of constant size, `States`: tensors with a row for each sequence, in and out.
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
