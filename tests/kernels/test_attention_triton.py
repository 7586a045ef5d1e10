"""Attention from the packed projection: in Triton's interpreter at toy sizes anywhere, and at real
sizes on a GPU."""

import math

import pytest
import torch
from nll_problems import DEVICE
from numerics import assert_as_good_as_plain, assert_close

triton = pytest.importorskip("triton")

from zipflm.kernels import attention_triton  # noqa: E402
from zipflm.kernels.attention_bits_triton import keep_mask  # noqa: E402
from zipflm.kernels.dropout import scale  # noqa: E402
from zipflm.kernels.packed_attention import packed_attention  # noqa: E402

RATE = 0.1
THRESHOLD = round(RATE * 65_536)
# The interpreter has no bfloat16 products.
LOW = torch.bfloat16 if DEVICE == "cuda" else torch.float16
# Each kernel's tiles: the smallest, then as the table has them on a GPU.
TILES = [
    {"forward": (16, 4, 1, 0), "queries": (32, 16, 4, 1, 0), "keys": (32, 16, 4, 1, 0)},
    {"forward": (64, 4, 1, 0), "queries": (128, 64, 4, 1, 0), "keys": (64, 64, 4, 1, 0)},
    {"forward": (128, 4, 1, 0), "queries": (64, 128, 4, 1, 0), "keys": (128, 64, 4, 1, 0)},
]


def a_seed(number=3):
    return torch.tensor([number], device=DEVICE)


def problem(length, head, dtype=torch.float32, batch=1, heads=2):
    """Packed queries, keys and values, and a gradient of the result."""
    qkv = torch.randn(batch, length, 3 * heads * head, device=DEVICE).to(dtype)
    return qkv, torch.randn(batch, length, heads * head, device=DEVICE).to(dtype)


def by_definition(qkv, keep, heads, threshold):
    """In the precision of `qkv`, with the kernels' own mask."""
    batch, length, width = qkv.shape
    query, key, value = (
        x.view(batch, length, heads, -1).transpose(1, 2) for x in qkv.chunk(3, dim=-1)
    )
    future = torch.ones(length, length, device=qkv.device).triu(1).bool()
    scores = query @ key.mT * query.shape[-1] ** -0.5
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    weights = weights * keep.view(batch, heads, length, length) * scale(threshold)
    return (weights @ value).transpose(1, 2).flatten(-2)


def expected_of(qkv, grad, heads=2, threshold=THRESHOLD, seed=3, dtype=torch.float64):
    keep = keep_mask(a_seed(seed), len(qkv) * heads, qkv.shape[1], threshold)
    qkv = qkv.to(dtype).requires_grad_()
    out = by_definition(qkv, keep, heads, threshold)
    return out.detach(), *torch.autograd.grad(out, qkv, grad.to(dtype))


def ours_of(qkv, grad, heads=2, threshold=THRESHOLD, seed=3):
    qkv = qkv.detach().requires_grad_()
    out, _ = packed_attention(qkv, a_seed(seed), heads, threshold)
    return out.detach(), *torch.autograd.grad(out, qkv, grad)


def assert_exact(qkv, grad, **options):
    pairs = zip(ours_of(qkv, grad, **options), expected_of(qkv, grad, **options), strict=True)
    for name, (ours, exact) in zip(("output", "gradient"), pairs, strict=True):
        assert_close(ours, exact, 3e-6, name)


@pytest.mark.parametrize("head", [16, 24])
@pytest.mark.parametrize("length", [1, 5, 64, 70])
def test_equals_the_definition_in_float32(length, head):
    assert_exact(*problem(length, head))


@pytest.mark.parametrize("tiles", TILES, ids=["small", "middle", "large"])
def test_the_size_of_a_tile_decides_neither_results_nor_masks(tiles, monkeypatch):
    """130 and 200 rows lie on both sides of the first group of 128 columns."""
    monkeypatch.setattr(attention_triton, "_BLOCKS_FLOAT32", tiles)
    assert_exact(*problem(200 if tiles != TILES[0] else 130, 16, heads=1), heads=1)


def test_low_precision_is_no_worse_than_plain():
    qkv, grad = problem(200, 64, LOW, heads=1)
    truth, plain = expected_of(qkv, grad, 1), expected_of(qkv, grad, 1, dtype=LOW)
    ours = ours_of(qkv, grad, 1)
    for name, t, p, o in zip(("output", "gradient"), truth, plain, ours, strict=True):
        assert o.dtype == LOW
        assert_as_good_as_plain(t, p, o, name)


@pytest.mark.parametrize("threshold", [0, 1, 60_000])
def test_any_threshold_will_do(threshold):
    assert_exact(*problem(20, 16), threshold=threshold)


def test_the_log_sum_exp_is_to_base_2():
    qkv, _ = problem(9, 16, heads=1)
    query, key, _ = qkv[0].double().chunk(3, dim=-1)
    scores = (query @ key.T / 4).masked_fill(torch.ones(9, 9, device=DEVICE).triu(1) > 0, -math.inf)
    lse = packed_attention(qkv, a_seed(), 1, THRESHOLD)[1]
    assert_close(lse[0, 0], scores.logsumexp(-1) / math.log(2), 1e-6)


def test_inputs_may_have_any_strides():
    qkv, grad = problem(20, 16, batch=2)
    expected = ours_of(qkv, grad)
    wide = torch.cat([qkv, qkv], dim=-1)[..., : qkv.shape[-1]]
    turned = qkv.mT.contiguous().mT
    for view, d_out in ((wide, grad), (turned, grad.mT.contiguous().mT)):
        for ours, theirs in zip(ours_of(view, d_out), expected, strict=True):
            assert torch.equal(ours, theirs)
    broadcast = torch.ones((), device=DEVICE).expand_as(grad)
    for ours, theirs in zip(ours_of(qkv, broadcast), ours_of(qkv, broadcast.clone()), strict=True):
        assert torch.equal(ours, theirs)


def test_equal_inputs_give_equal_bits_and_another_seed_other_numbers():
    qkv, grad = problem(70, 16)
    once, again, other = (ours_of(qkv, grad, seed=seed) for seed in (3, 3, 4))
    for one, two, three in zip(once, again, other, strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, three)


def test_sequences_know_nothing_of_each_other():
    qkv, grad = problem(20, 16, batch=3)
    before = ours_of(qkv, grad)
    qkv[1] += 1
    grad[1] += 1
    for one, other in zip(before, ours_of(qkv, grad), strict=True):
        assert torch.equal(one[::2], other[::2])
        assert not torch.equal(one[1], other[1])


def test_later_positions_are_not_seen():
    qkv, grad = problem(70, 16)
    before = packed_attention(qkv, a_seed(), 2, THRESHOLD)[0]
    qkv[:, 40:] += 100
    after = packed_attention(qkv, a_seed(), 2, THRESHOLD)[0]
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before, after)


def test_earlier_gradients_do_not_reach_later_positions():
    qkv, grad = problem(70, 16)
    grad[:, 40:] = 0
    assert (ours_of(qkv, grad)[1][:, 40:] == 0).all()


def test_scores_beyond_the_range_of_the_exponential_are_no_problem():
    qkv, grad = problem(20, 16)
    qkv[..., :64] *= 30  # queries and keys
    ours, exact = ours_of(qkv, grad), expected_of(qkv, grad)
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.isfinite().all()
        assert_close(mine, theirs, 1e-4)


@pytest.mark.parametrize(("width", "heads"), [(100, 2), (96, 5), (3 * 2 * 136, 2)])
def test_widths_that_do_not_fit_are_refused(width, heads):
    with pytest.raises(ValueError, match=f"packed width {width} with {heads} heads"):
        packed_attention(torch.zeros(1, 4, width, device=DEVICE), a_seed(), heads, THRESHOLD)


def test_no_rows_at_all_give_no_gradients():
    assert ours_of(*problem(0, 16))[1].shape == (1, 0, 96)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("length", "heads", "head"),
    [(512, 16, 64), (512, 8, 128), (500, 4, 64), (1, 4, 64), (77, 4, 32), (1000, 2, 80)],
)
def test_real_sizes_on_a_gpu(length, heads, head, dtype):
    qkv, grad = problem(length, head, dtype, batch=4, heads=heads)
    truth = expected_of(qkv, grad, heads)
    plain = expected_of(qkv, grad, heads, dtype=dtype)
    ours, again = ours_of(qkv, grad, heads), ours_of(qkv, grad, heads)
    for name, t, p, o, same in zip(("output", "gradient"), truth, plain, ours, again, strict=True):
        if dtype == torch.float32:
            assert_close(o, t, 5e-6, name)
        else:
            assert_as_good_as_plain(t, p, o, name)
        assert torch.equal(o, same)


@pytest.mark.gpu
@pytest.mark.parametrize("threshold", [0, 1, THRESHOLD])
def test_a_threshold_is_no_constant_of_the_compiled_kernel(threshold):
    qkv, grad = problem(300, 64, torch.float32)
    assert_exact(qkv, grad, threshold=threshold)
