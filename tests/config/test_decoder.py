from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from zipflm.config import TransformerDecoder
from zipflm.model.decoders.transformer import Transformer

SMALL = TransformerDecoder(dim=32, num_layers=3, num_heads=4, ffn_dim=48)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransformerDecoder(dim=30, num_heads=4), "num_heads=4: must divide dim=30"),
        (lambda: TransformerDecoder(dropout=1.0), r"dropout=1.0: must be in \[0, 1\)"),
        (
            lambda: TransformerDecoder(dim=12, num_heads=4, positions="rotary"),
            "even head width, but dim=",
        ),
        (
            lambda: TransformerDecoder(activation="gelu"),
            "activation='gelu': choose from relu, relu_sq",
        ),
        (lambda: TransformerDecoder(num_layers=0), "num_layers=0: must be at least 1"),
    ],
)
def test_rejects_impossible_decoders(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"bias": False},
        {"norm": "rms"},
        {"qk_norm": True},
        {"final_norm": True},
        {"final_norm": True, "norm": "rms"},
        {"input_residual": True, "value_residual": True},
        {"attention_gate": True},
    ],
)
def test_parameter_count_matches_built_decoder(fields):
    config = replace(SMALL, **fields)
    built = sum(parameter.numel() for parameter in Transformer(config).parameters())
    assert sum(config.params().values()) == built
    assert 0 not in config.params().values()


def test_products_match_built_decoder():
    block = 20
    config = replace(SMALL, bias=False, norm="rms")
    with FlopCounterMode(display=False) as counter:
        Transformer(config)(torch.randn(1, block, 32))
    products = counter.get_total_flops() / 2 / block
    # The counter ignores causality, which saves half of attention.
    attention = config.num_layers * 2 * block * 32
    assert config.products(block) == products - attention / 2
