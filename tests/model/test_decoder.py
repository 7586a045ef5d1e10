from dataclasses import replace

import pytest
import torch
from golden_files import load
from numerics import assert_close
from torch import nn

from zipflm.config import TransformerDecoder
from zipflm.model.decoders.positions import rotate, rotations, sinusoids
from zipflm.model.decoders.transformer import Shared, Transformer, _are_plain

PLAIN = TransformerDecoder(dim=32, num_layers=2, num_heads=4, ffn_dim=64)
MODERN = replace(
    PLAIN, positions="rotary", qk_norm=True, activation="relu_squared", norm="rms", bias=False
)
MIXED = replace(MODERN, input_residual=True, value_residual=True, attention_gate=True)


@pytest.mark.parametrize("dim", [32, 33, 1024])
def test_sinusoids_match_published_table(dim):
    table = load("modules/sinusoidal.npz")[f"table_dim{dim}_pad1"]
    # Their rows 0 and 1 are unused: the first word is at position 2.
    torch.testing.assert_close(sinusoids(62, dim), table[2:], rtol=0, atol=1e-5)


def test_sinusoids_of_long_sequences():
    golden = load("modules/sinusoidal.npz")
    table = sinusoids(3000, 32)
    torch.testing.assert_close(table[-1], golden["long_last_row"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [PLAIN, MODERN, MIXED, replace(PLAIN, final_norm=True), replace(PLAIN, norm_position="after")],
)
def test_is_causal(config):
    decoder = Transformer(config).eval()
    words = torch.randn(2, 9, 32)
    changed = words.clone()
    changed[:, 5] = torch.randn(2, 32)
    before, after = decoder(words)[0], decoder(changed)[0]
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(dim=-1).all()


def test_right_padding_changes_nothing():
    decoder = Transformer(PLAIN).eval()
    words = torch.randn(1, 6, 32)
    padded = torch.cat([words, torch.zeros(1, 4, 32)], dim=1)
    assert_close(decoder(padded)[0][:, :6], decoder(words)[0], 1e-6)


def test_rotary_products_depend_only_on_distance():
    query, key = torch.randn(2, 1, 1, 1, 16)
    rotation = rotations(50, 16, torch.device("cpu"))
    queries, keys = (rotate(x.expand(1, 50, 1, 16), rotation)[0, :, 0] for x in (query, key))
    products = queries @ keys.T
    for distance in (0, 1, 7):
        diagonal = products.diagonal(-distance)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal), 1e-4)


def test_rows_can_have_different_positions():
    positions = torch.tensor([[0, 1, 2], [5, 7, 7]])
    table, cos_sin = (
        sinusoids(3, 32, start=positions),
        rotations(3, 16, torch.device("cpu"), positions),
    )
    longer, rotation = sinusoids(8, 32), rotations(8, 16, torch.device("cpu"))
    assert table.equal(longer[positions])
    for ours, all_positions in zip(cos_sin, rotation, strict=True):
        assert ours.shape == (2, 3, 1, 8) and ours.equal(all_positions[positions])


def test_dropout_applies_only_in_training():
    decoder = Transformer(PLAIN)
    words = torch.randn(1, 4, 32)
    assert not torch.equal(decoder(words)[0], decoder(words)[0])
    decoder.eval()
    assert torch.equal(decoder(words)[0], decoder(words)[0])


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "relu_dropout"])
def test_each_dropout_rate_has_an_effect(rate):
    off = {"dropout": 0.0, "attention_dropout": 0.0, "relu_dropout": 0.0}
    words = torch.randn(1, 4, 32)
    quiet = Transformer(replace(PLAIN, **off))
    assert torch.equal(quiet(words)[0], quiet(words)[0])
    noisy = Transformer(replace(PLAIN, **off | {rate: 0.5}))
    assert not torch.equal(noisy(words)[0], noisy(words)[0])


def patch_forward(linear, call):
    """Offloading libraries do this, to load weights on demand."""
    original = linear.forward
    linear.forward = lambda x: (call(), original(x))[1]


HOOKS = {
    "forward": lambda linear, call: linear.register_forward_hook(lambda *_: call()),
    "backward": lambda linear, call: linear.register_full_backward_hook(lambda *_: call()),
    "before": lambda linear, call: linear.register_full_backward_pre_hook(lambda *_: call()),
    "patched": patch_forward,
}


@pytest.mark.parametrize("name", ["query", "key", "value", "ffn_in"])
@pytest.mark.parametrize("hook", HOOKS)
def test_calls_hooks_of_projections(hook, name):
    """Adapters and hooks must work although products are fused."""
    decoder, seen = Transformer(PLAIN), []
    linear = decoder.layers[0].get_submodule(name)
    HOOKS[hook](linear, lambda: seen.append(name))
    decoder(torch.randn(1, 4, 32))[0].sum().backward()
    assert seen == [name]
    assert not _are_plain(linear)  # disables fusing on a GPU


@pytest.mark.parametrize("name", ["query", "key", "value", "ffn_in"])
def test_uses_replaced_projections(name):
    decoder, words = Transformer(PLAIN).eval(), torch.randn(1, 4, 32)
    before, layer = decoder(words)[0], decoder.layers[0]
    layer.register_module(name, nn.Sequential(layer.get_submodule(name), nn.Softsign()))
    assert not torch.equal(decoder(words)[0], before)


def test_zero_output_layers_start_as_identity():
    config = replace(MODERN, init="zero-output", dropout=0.0)
    words = torch.randn(1, 4, 32)
    assert_close(Transformer(config)(words)[0], words * 32**0.5, 1e-6)


@pytest.mark.parametrize("config", [PLAIN, MODERN])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("embedded_in", [torch.float32, torch.float16, torch.bfloat16])
def test_residual_stream_has_the_autocast_dtype(config, dtype, embedded_in):
    """Looked-up embeddings are float32, projected ones are not."""
    decoder = Transformer(config)
    seen = []
    for layer in decoder.layers:
        layer.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output[0]]))
    with torch.autocast("cpu", dtype):
        decoder(torch.randn(1, 4, 32).to(embedded_in))
    assert [tensor.dtype for tensor in seen] == [dtype] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_residual_stream_has_the_embedding_dtype(dtype):
    decoder = Transformer(PLAIN).to(dtype)
    assert decoder(torch.randn(1, 4, 32, dtype=dtype))[0].dtype == dtype


def test_post_norm_matches_torchs_layer():
    config = replace(PLAIN, num_layers=1, norm_position="after")
    layer = Transformer(config).eval().layers[0]
    theirs = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=False).eval()
    for norm in (layer.attention_norm, layer.ffn_norm):
        nn.init.normal_(norm.weight)
    packed = [layer.query, layer.key, layer.value]
    state = {
        "self_attn.in_proj_weight": torch.cat([linear.weight for linear in packed]),
        "self_attn.in_proj_bias": torch.cat([linear.bias for linear in packed]),
    }
    names = {"attention_out": "self_attn.out_proj", "ffn_in": "linear1", "ffn_out": "linear2"}
    names |= {"attention_norm": "norm1", "ffn_norm": "norm2"}
    for ours, name in names.items():
        state |= {f"{name}.{k}": v for k, v in layer.get_submodule(ours).state_dict().items()}
    theirs.load_state_dict(state)
    hidden = torch.randn(2, 7, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    ours, _ = layer(hidden, Shared(None, hidden))
    assert_close(ours, theirs(hidden, src_mask=mask, is_causal=True), 1e-5)


def test_residuals_and_gates_follow_their_definition():
    """Written out with one head, two layers and no norm of queries and keys."""
    config = replace(
        PLAIN,
        num_heads=1,
        positions="rotary",
        norm="rms",
        bias=False,
        input_residual=True,
        value_residual=True,
        attention_gate=True,
    )
    decoder = Transformer(config).double().eval()
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.normal_(std=0.2)
    words = torch.randn(1, 6, 32, dtype=torch.float64)
    rotation = rotations(6, 32, words.device)
    hidden = start = words * 32**0.5
    first_value = None
    for layer in decoder.layers:
        hidden = layer.input_weights[0] * hidden + layer.input_weights[1] * start
        normed = torch.nn.functional.rms_norm(hidden, (32,))
        query, key = (
            rotate(linear(normed).unsqueeze(2), rotation).squeeze(2)
            for linear in (layer.query, layer.key)
        )
        value = layer.value(normed)
        if first_value is None:
            first_value = value
        else:
            value = layer.value_weights[0] * value + layer.value_weights[1] * first_value
        scores = (query @ key.mT / 32**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
        attended = scores.softmax(-1) @ value * 2 * layer.gate(normed).sigmoid()
        hidden = hidden + layer.attention_out(attended)
        normed = torch.nn.functional.rms_norm(hidden, (32,))
        hidden = hidden + layer.ffn_out(layer.ffn_in(normed).relu())
    torch.testing.assert_close(decoder(words)[0], hidden, rtol=1e-6, atol=1e-6)
