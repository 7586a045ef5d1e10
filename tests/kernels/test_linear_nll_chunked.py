import pytest
import torch
from nll_problems import NAMES, losses_and_gradients, sum_and_gradients, true_sum_and_gradients
from nll_problems import problem as problem_of
from numerics import LargestTensor, assert_as_good_as_plain, assert_close

from zipflm.kernels import linear_nll, reference
from zipflm.kernels import linear_nll_chunked as fused

# Sizes that are not multiples of a chunk.
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


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Devices also compute inactive rows."""
    monkeypatch.setattr(
        fused, "_row_chunks", lambda active_N, num_words: iter([slice(0, 40), slice(40, N)])
    )


@pytest.mark.parametrize("active", ["some", "none", "one", "all"])
@pytest.mark.parametrize("budget", [1, 3 * V, 1 << 22])
def test_matches_reference_with_any_chunk_size(monkeypatch, active, budget):
    monkeypatch.setattr(fused, "_CPU_LOGITS", budget)
    assert_matches_reference(active)


def test_matches_reference_as_on_a_device(as_on_a_device):
    assert_matches_reference("some")


def assert_matches_reference(active):
    for compute, nll in (
        (losses_and_gradients, fused.linear_nll),
        (sum_and_gradients, fused.linear_nll_sum),
    ):
        ours = compute(nll, *problem(active=active))
        plain = compute(reference.linear_nll, *problem(active=active))
        for name, mine, theirs in zip(NAMES, ours, plain, strict=True):
            assert_close(mine, theirs, 1e-12, name)


# Powers of two, because other factors round again.
@pytest.mark.parametrize("factor", [1.0, 2.0**-10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_is_as_accurate_as_plain_low_precision(dtype, factor):
    arguments = problem(dtype)
    truth = true_sum_and_gradients(*arguments, factor)
    plain = sum_and_gradients(reference.linear_nll, *arguments, factor)
    ours = sum_and_gradients(fused.linear_nll_sum, *arguments, factor)
    assert ours[0].dtype == torch.float32
    for name, t, p, o in zip(NAMES, truth, plain, ours, strict=True):
        assert_as_good_as_plain(t, p, o, name)


@pytest.mark.parametrize("factor", [1 / 3, 1e-3])
def test_upstream_gradient_is_not_rounded(factor):
    whole = fused.sum_and_gradients(*problem(torch.bfloat16))
    scaled = sum_and_gradients(fused.linear_nll_sum, *problem(torch.bfloat16), factor=factor)
    for one, other in zip(whole[1:], scaled[1:], strict=True):
        assert torch.equal((one.float() * factor).bfloat16(), other)


def test_nan_in_inactive_rows_has_no_effect_on_a_device(as_on_a_device):
    hidden, weight, targets, active = problem()
    with torch.no_grad():
        hidden[~active] = float("nan")
    for compute in (fused.linear_nll, fused.linear_nll_sum):
        _, d_hidden, d_weight = sum_and_gradients(compute, hidden, weight, targets, active)
        assert (d_hidden[~active] == 0).all() and d_weight.isfinite().all()
    nll, lse = fused.forward(hidden, weight, targets, active)
    assert (nll[~active] == 0).all() and (lse[~active] == 0).all()


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


def test_never_holds_all_logits(monkeypatch):
    monkeypatch.setattr(fused, "_CPU_LOGITS", 4 * V)
    hidden, weight, targets, active = problem(active="all")
    with torch.no_grad(), LargestTensor() as largest:
        # A dispatch mode does not see inside custom operators.
        _, lse = fused.forward(hidden, weight, targets, active)
        fused.backward(torch.ones(N), hidden, weight, targets, active, lse)
        fused.sum_and_gradients(hidden, weight, targets, active)
    assert largest.elements <= max(4 * V, V * E)


def test_operators_pass_opcheck():
    operators = torch.ops.zipflm
    for operator, arguments in [
        (operators.linear_nll_chunked, problem()),
        (
            operators.linear_nll_chunked_backward,
            (torch.ones(N).double(), *problem(), torch.ones(N).double()),
        ),
        (operators.linear_nll_sum_chunked, problem()),
    ]:
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(operator.default, arguments, test_utils=checks)


def test_exponential_kernels_give_the_same_results(triton_interpreter, monkeypatch):
    """In float32, because the interpreter has no bfloat16 products."""
    hidden, weight, targets, active = problem_of(70, 24, 132, 0.7)
    monkeypatch.setattr(fused, "_row_chunks", lambda *_: iter([slice(0, 40), slice(40, 70)]))
    with torch.no_grad():
        ours = fused._sum_and_gradients_from_exps(hidden, weight, targets, active)
        nothing = fused._sum_and_gradients_from_exps(
            hidden, weight, targets, torch.zeros_like(active)
        )
        strided = (tensor.T.contiguous().T for tensor in (hidden, weight))
        from_strided = fused._sum_and_gradients_from_exps(*strided, targets, active)
    truth = true_sum_and_gradients(hidden, weight, targets, active, 1)
    for name, mine, theirs in zip(NAMES, ours, truth, strict=True):
        assert_close(mine, theirs, 1e-6, name)
    assert all((each == 0).all() for each in nothing)
    assert all(torch.equal(*each) for each in zip(ours, from_strided, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("size", [(1024, 512, 5000), (300, 72, 999)])
def test_gpu_sum_is_as_accurate_as_plain_bfloat16(size, spread):
    arguments = problem_of(*size, 0.9, torch.bfloat16, "cuda")
    with torch.no_grad():
        arguments[1].copy_(spread * torch.randn(arguments[1].shape))
    truth = true_sum_and_gradients(*arguments)
    plain = sum_and_gradients(reference.linear_nll, *arguments)
    ours = sum_and_gradients(fused.linear_nll_sum, *arguments)
    again = sum_and_gradients(fused.linear_nll_sum, *arguments)
    for name, t, p, o, a in zip(NAMES, truth, plain, ours, again, strict=True):
        assert_as_good_as_plain(t, p, o, name)
        assert torch.equal(o, a), name
