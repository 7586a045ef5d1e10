"""Initial values of parameters."""

import math

import pytest
import torch

from zipflm import AdaptiveEmbedding, AdaptiveSoftmax, Bands, LanguageModel, preset
from zipflm.config import TransformerDecoder
from zipflm.model import initialization
from zipflm.model.decoders.transformer import DecoderLayer
from zipflm.presets import FACTORIZATIONS

BANDS = Bands(vocab_size=100, cutoffs=(10, 40), dim=16, factor=2)


def built(config):
    with torch.device("meta"):
        return LanguageModel(config)


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_every_parameter_has_an_initialization(name):
    model = built(preset("tiny", name))
    assert initialization.fills(model).keys() == dict(model.named_parameters()).keys()


def test_values_depend_only_on_seed_and_name():
    like, fill = torch.empty(40, 30, device="meta"), initialization.table()
    first = initialization.first_value(1, "a", fill, like)
    torch.randn(17)
    assert torch.equal(initialization.first_value(1, "a", fill, like), first)
    for seed, name in ((2, "a"), (1, "b"), (11, "a")):
        other = initialization.first_value(seed, name, fill, like)
        assert not torch.equal(other, first)
        # Nor correlated.
        both = torch.stack([other.flatten(), first.flatten()])
        assert torch.corrcoef(both)[0, 1].abs() < 0.1


def test_standalone_layers_use_the_global_generator():
    torch.manual_seed(3)
    first, second = AdaptiveEmbedding(BANDS), AdaptiveEmbedding(BANDS)
    torch.manual_seed(3)
    again = AdaptiveEmbedding(BANDS)
    assert torch.equal(first.embeddings[1], again.embeddings[1])
    assert not torch.equal(first.embeddings[1], second.embeddings[1])
    again.reset_parameters()
    assert not torch.equal(first.embeddings[1], again.embeddings[1])


@pytest.mark.parametrize("tie", ["none", "embeddings"])
def test_models_and_standalone_layers_have_the_same_distributions(tie):
    torch.manual_seed(1)
    embedding = AdaptiveEmbedding(BANDS, padding_idx=1)
    softmax = AdaptiveSoftmax(BANDS, tied_to=embedding if tie != "none" else None, tie=tie)
    for layer in (embedding, softmax):
        fills = initialization.fills(layer)
        for name, alone in layer.named_parameters():
            other = initialization.first_value(1, name, fills[name], alone)
            count = alone.numel()
            assert other.std() == pytest.approx(alone.std().item(), rel=6 / math.sqrt(count)), name
            assert other.mean() == pytest.approx(0, abs=5 * other.std().item() / math.sqrt(count))
    table = initialization.first_value(1, "a", initialization.table(1), embedding.embeddings[0])
    assert not table[1].any()


def test_torch_linear_matches_pytorch():
    linear = torch.nn.Linear(64, 500)
    bound = 1 / 8
    for part in (linear.weight, linear.bias):
        assert part.abs().max() <= bound and part.abs().max() > 0.98 * bound
    ours = initialization.first_value(1, "a", initialization.torch_linear(64), linear.weight)
    assert ours.abs().max() <= bound and ours.std() == pytest.approx(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize("init", ["paper", "fairseq", "zero-output"])
def test_initialization_of_decoder_layers(init):
    config = TransformerDecoder(dim=64, ffn_dim=128, num_layers=1, num_heads=2, init=init)
    layer = DecoderLayer(config, 0)
    zero = {name for name, param in layer.named_parameters() if not param.any()}
    biases = {f"{name}.bias" for name in ("query", "key", "value", "ffn_in", "ffn_out")}
    always = {"attention_out.bias", "attention_norm.bias", "ffn_norm.bias"}
    outputs = {"attention_out.weight", "ffn_out.weight"}
    more = {"paper": biases, "fairseq": set(), "zero-output": biases | outputs}
    assert zero == always | more[init]
    xavier = (6 / (64 + 128)) ** 0.5
    assert layer.ffn_in.weight.abs().max().item() == pytest.approx(
        1 / 8 if init == "fairseq" else xavier, rel=0.01
    )
    assert layer.query.weight.abs().max().item() == pytest.approx((3 / 128) ** 0.5, rel=0.01)
