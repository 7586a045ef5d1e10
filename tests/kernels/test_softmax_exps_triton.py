"""The product that leaves exponentials, in Triton's interpreter unless there is a GPU."""

import pytest
import torch
from nll_problems import DEVICE
from numerics import assert_close
from torch.nn import functional as F

triton = pytest.importorskip("triton")

from zipflm.kernels import softmax_triton  # noqa: E402
from zipflm.kernels.softmax_triton import hidden_gradient, row_exps  # noqa: E402

# On a GPU products of float32 would be rounded; bfloat16 is what it is for.
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
# Of one entry of the gradient, however small: its own rounding, and that of a logit near 500.
TOLERANCE = (2**-8 if DEVICE == "cuda" else 0) + 2e-4


def problem(rows=37, width=72, words=131, padded=256, scale=0.3):
    """Hidden vectors, weights with rows of zeros behind the words, targets and active rows."""
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
    """Loss and gradient are those of float64; returns the scales."""
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
def test_loss_and_gradient_are_those_of_a_softmax(size):
    require_exact(*problem(**size))


def test_a_confident_row_keeps_the_digits_of_its_gradient():
    """One minus a probability near one is computed from the others, not from that probability."""
    hidden, weight, words, targets, active = problem()
    logits = logits_of(hidden, weight, words)
    targets = logits.argmax(-1)
    hidden = 8 * hidden
    nll = F.cross_entropy(8 * logits, targets, reduction="none")
    assert nll.min() < 1e-6
    require_exact(hidden, weight, words, targets, active)


@pytest.mark.filterwarnings("ignore:overflow encountered|invalid value:RuntimeWarning")
def test_a_row_whose_target_is_hopeless_is_computed_anew():
    """Its exponentials are beyond float32, those of other rows are not."""
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
def test_what_is_not_a_number_stays_in_its_row(bad):
    hidden, weight, words, targets, active = problem()
    hidden[0, 0] = float(bad)
    weight[:words, 0] = -weight[:words, 0].abs()
    weight[targets[0], 0] *= -1  # with infinity, the target is all and the others are nothing
    nll, _, scale, miss = row_exps(hidden, weight, words, targets, active)
    for numbers in (nll, scale, miss):
        assert numbers[0].isnan()
        assert numbers[1:].isfinite().all()


def test_statistics_are_float32_whatever_is_the_default():
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


def test_the_gradient_of_hidden_vectors_has_the_target_in_full_precision():
    hidden, weight, words, targets, active = problem()
    exps = row_exps(hidden, weight, words, targets, active)
    unscaled = exps.exps_RV.float() @ weight.float()
    ours = torch.empty_like(unscaled)
    hidden_gradient(unscaled, exps, weight, targets, ours)
    logits = logits_of(hidden, weight, words)
    gradient = (logits.softmax(-1) - F.one_hot(targets, words)) * active.unsqueeze(1)
    assert_close(ours, gradient @ weight[:words].double(), TOLERANCE / 4)


def test_arguments_need_not_be_contiguous():
    hidden, weight, words, targets, active = problem()
    straight = row_exps(hidden, weight, words, targets, active)
    crooked = row_exps(
        hidden.T.contiguous().T,
        weight.T.contiguous().T,
        words,
        targets.repeat_interleave(2)[::2],
        active.repeat_interleave(2)[::2],
    )
    for one, other in zip(straight, crooked, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("room", "words"), [(232_448, 256), (166_912, 128), (101_376, 128)])
def test_tiles_are_as_large_as_a_gpu_has_room_for(monkeypatch, room, words):
    class Properties:
        shared_memory_per_block_optin = room
        multi_processor_count = 7

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    softmax_triton._tiles_and_programs.cache_clear()
    tiles, programs = softmax_triton._tiles_and_programs(torch.device("cuda", 3))
    softmax_triton._tiles_and_programs.cache_clear()
    assert (tiles.words, programs) == (words, 7)
