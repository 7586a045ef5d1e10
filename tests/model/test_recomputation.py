"""Recomputation in the backward pass does not change results."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zipflm import LanguageModel
from zipflm.presets.recipes import resolve

SIZES = ["decoder.dim=32", "decoder.ffn_dim=64", "input.dim=32", "output.dim=32"]
SMALL = [*SIZES, "decoder.num_layers=2"]
DROPOUT = ["decoder.dropout=0.2", "decoder.relu_dropout=0.1", "decoder.attention_dropout=0"]
ALL_DROPOUT = [*DROPOUT, "decoder.attention_dropout=0.1"]
NO_DROPOUT = [f"decoder.{name}=0" for name in ("dropout", "relu_dropout", "attention_dropout")]
MODES = ["attention", "layer"]


@pytest.fixture(autouse=True)
def _reset_compiler():
    torch.compiler.reset()


def model_with(mode, *overrides, recipe="paper", device="cpu"):
    torch.manual_seed(0)
    model = LanguageModel(resolve("tiny/ADP-T", recipe, [*SMALL, *overrides], 4000))
    model.decoder.set_recompute(mode)
    return model.to(device)


def words_and_targets(length=12, device="cpu"):
    return torch.randint(1000, (2, 2, length), generator=torch.manual_seed(1)).to(device)


def loss_and_gradients(model, score=None, length=12, precision=torch.float32):
    device = next(model.parameters()).device
    words, targets = words_and_targets(length, device)
    torch.manual_seed(2)
    with torch.autocast(device.type, precision, enabled=precision != torch.float32):
        loss = (score or model.nll_sum)(words, targets)
    model.zero_grad()
    loss.backward()
    next_random = torch.rand(1)
    return [loss.detach(), next_random, *(parameter.grad for parameter in model.parameters())]


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dropout", [NO_DROPOUT, DROPOUT, ALL_DROPOUT])
@pytest.mark.parametrize(
    ("recipe", "precision"),
    [("paper", torch.float32), ("modern", torch.float32), ("paper", torch.bfloat16)],
)
def test_results_are_bitwise_equal(mode, dropout, recipe, precision):
    """Including the next random number: recomputation restores the generator."""
    expected = loss_and_gradients(model_with("none", *dropout, recipe=recipe), precision=precision)
    found = loss_and_gradients(model_with(mode, *dropout, recipe=recipe), precision=precision)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize(("mode", "products"), [("none", 0), ("attention", 1), ("layer", 3)])
def test_recomputes_the_requested_products_but_never_attention(mode, products):
    """A layer has four products: queries, keys and values; attention's output; two of the
    feed-forward. The last one is not needed again."""
    model = model_with(mode, *NO_DROPOUT, "decoder.num_layers=3")
    loss = model.nll_sum(*words_and_targets())
    with Counting() as backward:
        loss.backward()
    assert backward.calls["addmm"] == 3 * products
    assert not any("attention" in name for name in backward.calls if "backward" not in name)
    assert sum(backward.calls[name] for name in backward.calls if "attention" in name) == 3


@pytest.mark.parametrize("mode", MODES)
def test_inference_is_unaffected(mode):
    plain, model = (model_with(mode).eval() for mode in ("none", mode))
    words, _ = words_and_targets()
    cache = model.new_cache(2, 12)
    assert torch.equal(model(words), plain(words))
    with torch.no_grad():
        assert torch.equal(model(words), plain(words))
        torch.testing.assert_close(model(words, cache), plain(words))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_compiled_code_agrees_and_compiles_once(mode):
    """This backend partitions graphs like inductor."""
    results = []
    for each in ("none", mode):
        torch.compiler.reset()
        model = model_with(each, *DROPOUT, "decoder.num_layers=1")
        score = torch.compile(
            model.nll_sum, fullgraph=True, backend="aot_eager_decomp_partition", dynamic=False
        )
        results.append(loss_and_gradients(model, score))
    for ours, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with torch.compiler.set_stance("fail_on_recompile"):
        loss_and_gradients(model, score)


@pytest.mark.slow
def test_other_lengths_do_not_recompile():
    plain, again = (model_with(mode, *NO_DROPOUT).decoder for mode in ("none", "layer"))
    compiled = torch.compile(again, fullgraph=True, backend="aot_eager")
    for length in (8, 9):
        compiled(torch.randn(2, length, 32))[0].sum().backward()
    again.zero_grad()
    hidden = torch.randn(2, 13, 32)
    plain(hidden)[0].square().sum().backward()
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(hidden)[0].square().sum().backward()
    for ours, theirs in zip(again.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_gpu_recomputes_the_same_masks(mode, precision, compiled):
    """A different mask would change all gradients by far more than rounding does."""
    results = []
    for each in ("none", mode):
        torch.compiler.reset()
        model = model_with(each, *ALL_DROPOUT, device="cuda")
        score = torch.compile(model.nll_sum, fullgraph=True) if compiled else None
        results.append(loss_and_gradients(model, score, 64, precision))
    tolerance = 1e-4 if precision == torch.float32 else 0.05
    theirs, ours = (torch.cat([x.flatten() for x in each[2:]]) for each in results)
    assert (ours - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_gpu_does_not_recompute_attention(mode):
    model = model_with(mode, *ALL_DROPOUT, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model.nll_sum(*words_and_targets(64, "cuda"))
    with Counting() as backward:
        loss.backward()
    assert not any("attention" in name for name in backward.calls if "backward" not in name)
    assert sum(backward.calls[name] for name in backward.calls if "attention" in name) == 2
