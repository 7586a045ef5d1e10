from functools import partial

import pytest
import torch
from numerics import LargestTensor, assert_as_good_as_plain, assert_close

from zipflm.kernels import linear_nll, reference
from zipflm.kernels import linear_nll_chunked as fused

# Sizes that divide no chunk.
N, E, V = 67, 24, 131


def problem(dtype=torch.float64, active="some", seed=0):
    torch.manual_seed(seed)
    hidden = torch.randn(N, E, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, E, dtype=dtype, requires_grad=True)
    targets = torch.randint(V, (N,))
    mask = {
        "some": torch.rand(N) < 0.4,
        "none": torch.zeros(N, dtype=torch.bool),
        "one": torch.arange(N) == 13,
        "all": torch.ones(N, dtype=torch.bool),
    }[active]
    return hidden, weight, targets, mask


def losses_and_gradients(compute, hidden, weight, targets, active):
    nll = compute(hidden, weight, targets, active)
    upstream = torch.linspace(-1, 2, N, dtype=nll.dtype)
    return nll, *torch.autograd.grad(nll, (hidden, weight), upstream)


@pytest.mark.parametrize("active", ["some", "none", "one", "all"])
@pytest.mark.parametrize("budget", [1, 3 * V, 1 << 22])
def test_equals_the_reference_with_any_chunk(monkeypatch, active, budget):
    monkeypatch.setattr(fused, "_CPU_LOGITS", budget)
    ours = losses_and_gradients(fused.linear_nll, *problem(active=active))
    plain = losses_and_gradients(reference.linear_nll, *problem(active=active))
    for name, mine, theirs in zip(("nll", "hidden", "weight"), ours, plain, strict=True):
        assert_close(mine, theirs, 1e-12, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_no_worse_than_plain_low_precision(dtype):
    low = problem(dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in low[:2]]
    truth = losses_and_gradients(reference.linear_nll, *exact, *low[2:])
    plain = losses_and_gradients(reference.linear_nll, *low)
    ours = losses_and_gradients(fused.linear_nll, *low)
    assert ours[0].dtype == torch.float32
    for name, t, p, o in zip(("nll", "hidden", "weight"), truth, plain, ours, strict=True):
        assert_as_good_as_plain(t, p, o, name)


@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_inactive_rows_are_exactly_zero_even_when_their_numbers_are_not(impl):
    hidden, weight, targets, active = problem()
    with torch.no_grad():
        hidden[~active] = float("nan")
    compute = partial(linear_nll, impl=impl)
    nll, d_hidden, d_weight = losses_and_gradients(compute, hidden, weight, targets, active)
    assert (nll[~active] == 0).all()
    assert (d_hidden[~active] == 0).all()
    assert d_weight.isfinite().all()


def test_large_logits_do_not_overflow():
    hidden, weight, targets, active = problem(torch.float32)
    nll = linear_nll(hidden * 1e4, weight, targets, active)
    assert nll.isfinite().all()


def test_gradcheck():
    hidden, weight, targets, active = problem()
    targets = targets[:5] % 7
    assert torch.autograd.gradcheck(
        lambda h, w: linear_nll(h, w, targets, active[:5]), (hidden[:5], weight[:7]), eps=1e-6
    )


def test_never_holds_a_table_of_tokens_by_words(monkeypatch):
    monkeypatch.setattr(fused, "_CPU_LOGITS", 4 * V)
    hidden, weight, targets, active = problem(active="all")
    with torch.no_grad(), LargestTensor() as largest:
        # The operators' insides: a mode does not look into an operator called as a whole.
        _, lse = fused.forward(hidden, weight, targets, active)
        fused.backward(torch.ones(N), hidden, weight, targets, active, lse)
    assert largest.elements <= max(4 * V, V * E)


def test_operators_keep_their_promises_to_the_compiler():
    operators = torch.ops.zipflm
    for operator, arguments in [
        (operators.linear_nll_chunked, problem()),
        (
            operators.linear_nll_chunked_backward,
            (torch.ones(N).double(), *problem(), torch.ones(N).double()),
        ),
    ]:
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(operator.default, arguments, test_utils=checks)
