"""Products that write exponentials, on a GPU or in Triton's interpreter."""

import pytest
import torch
from nll_problems import DEVICE
from numerics import assert_close
from torch.nn import functional as F

triton = pytest.importorskip("triton")

from zipflm.kernels import softmax_triton  # noqa: E402
from zipflm.kernels.softmax_triton import hidden_gradient, row_exps  # noqa: E402

# GPUs would round float32 products; the kernel is for bfloat16.
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
# Relative error of each entry of the gradient: its own rounding, and that of a logit near 500.
TOLERANCE = (2**-8 if DEVICE == "cuda" else 0) + 2e-4


def problem(rows=37, width=72, words=131, padded=256, scale=0.3):
    """Hidden vectors, weights padded with zeros, targets and active rows."""
    torch.manual_seed(rows + width + words)
    hidden = torch.randn(rows, width).to(DEVICE, DTYPE)
    weight = torch.zeros(padded, width, device=DEVICE, dtype=DTYPE)
    weight[:words] = (scale * torch.randn(words, width)).to(DEVICE, DTYPE)
    targets = torch.randint(words, (rows,), device=DEVICE)
    active = torch.arange(rows, device=DEVICE) % 5 != 2
    return hidden, weight, words, targets, active


def logits_of(hidden, weight, words):
    return hidden.double() @ weight[:words].double().T


def require_exact(hidden, weight, words, targets, active):
    """Compare loss and gradient with float64; return the scales."""
    nll, exps, scale, miss = row_exps(hidden, weight, words, targets, active)
    logits = logits_of(hidden, weight, words)
    expected = F.cross_entropy(logits, targets, reduction="none").where(active, 0.0)
    assert_close(nll, expected, 1e-5)
    gradient = (logits.softmax(-1) - F.one_hot(targets, words)) * active.unsqueeze(1)
    ours = exps[:, :words].double() * scale.double().unsqueeze(1)
    assert (exps.gather(1, targets.unsqueeze(1)) == 0).all()
    ours.scatter_(1, targets.unsqueeze(1), -miss.double().unsqueeze(1))
    assert ((ours - gradient).abs() <= TOLERANCE * gradient.abs() + 1e-30).all()
    assert (exps[:, words:] == 0).all()
    assert all((each[~active] == 0).all() for each in (nll, scale, miss))
    return scale


@pytest.mark.parametrize(
    "size",
    [
        {},
        {"rows": 1, "words": 2, "padded": 128},
        {"rows": 128, "width": 8, "words": 256},
        {"rows": 130, "width": 200, "words": 300, "padded": 384},
    ],
)
def test_loss_and_gradient_match_softmax(size):
    require_exact(*problem(**size))


def test_confident_rows_have_accurate_gradients():
    """1 - p of a probable target is computed from the other words."""
    hidden, weight, words, targets, active = problem()
    logits = logits_of(hidden, weight, words)
    targets = logits.argmax(-1)
    hidden = 8 * hidden
    nll = F.cross_entropy(8 * logits, targets, reduction="none")
    assert nll.min() < 1e-6
    require_exact(hidden, weight, words, targets, active)


@pytest.mark.filterwarnings("ignore:overflow encountered|invalid value:RuntimeWarning")
def test_rows_with_unlikely_targets_are_recomputed():
    """Their exponentials overflow float32."""
    hidden, weight, words, targets, active = problem()
    hidden[3:5] *= 40
    targets[3:5] = logits_of(hidden, weight, words)[3:5].argmin(-1)
    active[3], active[4] = True, False
    nll = F.cross_entropy(logits_of(hidden, weight, words), targets, reduction="none")
    assert nll[3] > 100
    scale = require_exact(hidden, weight, words, targets, active)
    assert scale[3] == 1


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_nan_stays_in_its_row(bad):
    hidden, weight, words, targets, active = problem()
    hidden[0, 0] = float(bad)
    weight[:words, 0] = -weight[:words, 0].abs()
    weight[targets[0], 0] *= -1  # with infinity, the target has all of the probability
    nll, _, scale, miss = row_exps(hidden, weight, words, targets, active)
    for numbers in (nll, scale, miss):
        assert numbers[0].isnan()
        assert numbers[1:].isfinite().all()


def test_statistics_ignore_the_default_dtype():
    arguments = problem()
    expected = row_exps(*arguments)
    for dtype in (torch.float16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            found = row_exps(*arguments)
        finally:
            torch.set_default_dtype(torch.float32)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other)


def test_hidden_gradient_has_the_target_in_full_precision():
    hidden, weight, words, targets, active = problem()
    exps = row_exps(hidden, weight, words, targets, active)
    unscaled = exps.exps_RV.float() @ weight.float()
    ours = torch.empty_like(unscaled)
    hidden_gradient(unscaled, exps, weight, targets, ours)
    logits = logits_of(hidden, weight, words)
    gradient = (logits.softmax(-1) - F.one_hot(targets, words)) * active.unsqueeze(1)
    assert_close(ours, gradient @ weight[:words].double(), TOLERANCE / 4)


def test_accepts_strided_arguments():
    hidden, weight, words, targets, active = problem()
    contiguous = row_exps(hidden, weight, words, targets, active)
    strided = row_exps(
        hidden.T.contiguous().T,
        weight.T.contiguous().T,
        words,
        targets.repeat_interleave(2)[::2],
        active.repeat_interleave(2)[::2],
    )
    for one, other in zip(contiguous, strided, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("room", "words"), [(232_448, 256), (166_912, 128), (101_376, 128)])
def test_tile_size_depends_on_shared_memory(monkeypatch, room, words):
    class Properties:
        shared_memory_per_block_optin = room
        multi_processor_count = 7

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    softmax_triton._tiles_and_programs.cache_clear()
    tiles, programs = softmax_triton._tiles_and_programs(torch.device("cuda", 3))
    softmax_triton._tiles_and_programs.cache_clear()
    assert (tiles.words, programs) == (words, 7)
