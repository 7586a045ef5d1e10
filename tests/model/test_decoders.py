"""Gated convolutions, LSTM and QRNN, compared with word-by-word implementations."""

import math
from dataclasses import replace

import pytest
import torch
from numerics import assert_close
from torch.nn import functional as F

from zipflm.config import GatedConvolutionDecoder, LSTMDecoder, QRNNDecoder
from zipflm.model.decoders import build_decoder
from zipflm.model.decoders.qrnn import linear_scan

D = 6
CONFIGS = {
    "gcnn": GatedConvolutionDecoder(dim=D, blocks=((3, 8, 0), (1, 8, 0), (4, 8, 0)), dropout=0.0),
    "bottleneck": GatedConvolutionDecoder(dim=D, blocks=((5, 8, 3), (2, D, 4)), dropout=0.0),
    "lstm": LSTMDecoder(dim=D, hidden_dim=D, num_layers=2, dropout=0.0),
    "projected lstm": LSTMDecoder(dim=D, hidden_dim=10, num_layers=2, dropout=0.0),
    "qrnn": QRNNDecoder(dim=D, hidden_dim=10, num_layers=3, dropout=0.0),
    "wide qrnn": QRNNDecoder(dim=D, hidden_dim=4, num_layers=1, window=3, dropout=0.0),
}


def a_decoder(name, dtype=torch.float64, **changes):
    """A decoder with random weights, including biases and gains."""
    decoder = build_decoder(replace(CONFIGS[name], **changes)).to(dtype)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return decoder


@pytest.fixture
def words():
    return torch.randn(3, 11, D, dtype=torch.float64)


def gcnn_by_definition(decoder, words):
    config, hidden = decoder.config, words * math.sqrt(D)
    for (kernel, width, bottleneck), block in zip(config.blocks, decoder.layers, strict=True):
        kernels = [1, kernel, 1] if bottleneck else [kernel]
        inner = hidden
        for size, layer in zip(kernels, block.convolutions, strict=True):
            weight = normalized(layer)
            outputs = []
            for t in range(inner.shape[1]):
                total = layer.bias_N.clone().expand(len(inner), -1)
                for k in range(size):
                    source = t - (size - 1) + k
                    if source >= 0:
                        total = total + inner[:, source] @ weight[:, :, k].T
                value, gate = total.chunk(2, dim=-1)
                outputs.append(value * gate.sigmoid())
            inner = torch.stack(outputs, dim=1)
        residual = hidden
        if hidden.shape[-1] != width:
            residual = hidden @ normalized(block.residual)[:, :, 0].T + block.residual.bias_N
        hidden = (inner + residual) / math.sqrt(2)
    return hidden


def normalized(layer):
    lengths = layer.direction_NMK.square().sum((1, 2), keepdim=True).sqrt()
    return layer.direction_NMK / lengths * layer.gain_N[:, None, None]


def lstm_by_definition(decoder, words):
    hidden = words * math.sqrt(D)
    for layer in decoder.layers:
        weights = dict(layer.cells.named_parameters())
        output = hidden.new_zeros(len(hidden), D)
        cells = hidden.new_zeros(len(hidden), layer.cells.hidden_size)
        outputs = []
        for t in range(hidden.shape[1]):
            sums = hidden[:, t] @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
            sums = sums + output @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]
            into, forget, candidate, out = sums.chunk(4, dim=-1)
            cells = forget.sigmoid() * cells + into.sigmoid() * candidate.tanh()
            output = out.sigmoid() * cells.tanh()
            if "weight_hr_l0" in weights:
                output = output @ weights["weight_hr_l0"].T
            outputs.append(output)
        hidden = torch.stack(outputs, dim=1)
    return hidden


def qrnn_by_definition(decoder, words):
    hidden = words * math.sqrt(D)
    for layer in decoder.layers:
        width = layer.gates.out_features // 3
        weight = layer.gates.weight.view(3 * width, -1, layer.window)
        cells, outputs = hidden.new_zeros(len(hidden), width), []
        for t in range(hidden.shape[1]):
            sums = layer.gates.bias.expand(len(hidden), -1)
            for k in range(layer.window):
                source = t - (layer.window - 1) + k
                if source >= 0:
                    sums = sums + hidden[:, source] @ weight[:, :, k].T
            candidate, forget, out = sums.chunk(3, dim=-1)
            forget = forget.sigmoid()
            cells = forget * cells + (1 - forget) * candidate.tanh()
            outputs.append(out.sigmoid() * cells)
        hidden = torch.stack(outputs, dim=1)
    return hidden


DEFINITIONS = {
    "gcnn": gcnn_by_definition,
    "bottleneck": gcnn_by_definition,
    "lstm": lstm_by_definition,
    "projected lstm": lstm_by_definition,
    "qrnn": qrnn_by_definition,
    "wide qrnn": qrnn_by_definition,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_matches_definition(name, words):
    decoder = a_decoder(name)
    assert_close(decoder(words)[0], DEFINITIONS[name](decoder, words), 1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameter_count_and_shapes_match_built_decoder(name):
    decoder, config = a_decoder(name), CONFIGS[name]
    built = sum(parameter.numel() for parameter in decoder.parameters())
    assert sum(config.params().values()) == built
    assert 0 not in config.params().values()
    assert decoder(torch.randn(1, 2, D, dtype=torch.float64))[0].shape[-1] == config.output_dim
    assert len(decoder.layers) == config.num_layers


@pytest.mark.parametrize("name", CONFIGS)
def test_is_causal(name, words):
    decoder, changed = a_decoder(name), words.clone()
    changed[:, 6:] += 1
    before, after = decoder(words)[0], decoder(changed)[0]
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6] != after[:, 6]).all()


@pytest.mark.parametrize("sizes", [[1] * 11, [4, 7], [1, 9, 1]])
@pytest.mark.parametrize("name", CONFIGS)
def test_carried_state_matches_one_long_pass(name, sizes, words):
    decoder, state, parts = a_decoder(name), None, []
    for part in words.split(sizes, dim=1):
        hidden, state = decoder(part, state)
        parts.append(hidden)
    whole, last = decoder(words)
    assert_close(torch.cat(parts, dim=1), whole, 1e-12)
    for carried, at_once in zip(state, last, strict=True):
        assert_close(carried, at_once, 1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_match_finite_differences(name):
    decoder = a_decoder(name)
    words = torch.randn(1, 3, D, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn_like(each) for each in decoder(words)[1])
    state = tuple(each.requires_grad_() for each in state)
    parameters = tuple(decoder.parameters())

    def function(words, *rest):
        hidden, after = decoder(words, rest[: len(state)])
        return hidden, *after

    torch.autograd.gradcheck(function, (words, *state, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_dropout_applies_only_in_training(name, words):
    decoder = a_decoder(name, dropout=0.5)
    assert not torch.equal(decoder(words)[0], decoder(words)[0])
    decoder.eval()
    assert torch.equal(decoder(words)[0], decoder(words)[0])


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 100])
def test_scan_matches_loop(length):
    decay, input = torch.rand(2, length, 3).double(), torch.randn(2, length, 3).double()
    state = start = torch.randn(2, 3).double()
    expected = []
    for t in range(length):
        state = decay[:, t] * state + input[:, t]
        expected.append(state)
    assert_close(linear_scan(decay, input, start), torch.stack(expected, dim=1), 1e-12)


def test_scan_is_stable_for_tiny_decays():
    decay = torch.full((1, 2000, 2), 1e-30)
    decay[..., 1] = 1 - 1e-7
    states = linear_scan(decay, torch.ones(1, 2000, 2), torch.zeros(1, 2))
    assert_close(states[0, -1, 0], torch.tensor(1.0), 1e-6)
    assert_close(states[0, -1, 1] / 2000, torch.tensor(1.0), 1e-3)


def test_fused_optimizers_invalidate_cached_weights(words):
    """Fused optimizers do not increment the version of a weight."""
    decoder = a_decoder("gcnn")
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.1, fused=True)
    for is_switched in (True, False):
        for _ in range(2):
            decoder.train(is_switched)
            decoder(words)[0].square().sum().backward()
            optimizer.step()
            decoder.eval()
            with torch.no_grad():
                assert_close(decoder(words)[0], gcnn_by_definition(decoder, words), 1e-12)


def test_changed_weights_invalidate_cached_weights(words):
    decoder = a_decoder("gcnn").eval()
    with torch.no_grad():
        before = decoder(words)[0]
        decoder.layers[0].convolutions[0].gain_N.mul_(2)
        assert not torch.equal(decoder(words)[0], before)
        assert_close(decoder(words)[0], gcnn_by_definition(decoder, words), 1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_uses_half_precision_under_autocast(name, words):
    decoder, words = a_decoder(name, torch.float32), words.float()
    exact, _ = decoder(words)
    with torch.autocast("cpu", torch.bfloat16):
        hidden, state = decoder(words)
        again, _ = decoder(words, state)
    assert hidden.dtype == again.dtype == torch.bfloat16
    assert F.cosine_similarity(hidden.float().flatten(), exact.flatten(), dim=0) > 0.99
    lower = decoder.to(torch.bfloat16)
    assert lower(words.bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LSTMDecoder(dim=8, hidden_dim=4), "hidden_dim=4: must be at least dim=8"),
        (lambda: GatedConvolutionDecoder(dim=8, blocks=()), "blocks=.*kernel:width:bottleneck"),
        (lambda: GatedConvolutionDecoder(dim=8, blocks=((0, 4, 0),)), "kernel:width:bottleneck"),
        (lambda: QRNNDecoder(dim=8, hidden_dim=8, window=0), "window=0: must be at least 1"),
        (lambda: QRNNDecoder(dim=8, hidden_dim=8, dropout=1), "dropout=1: must be in"),
    ],
)
def test_rejects_impossible_decoders(make, message):
    with pytest.raises(ValueError, match=message):
        make()
