"""The wrapper alone, around functions that only a test would write."""

import pytest
import torch
from nll_problems import problem
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from zipflm.kernels.operators import nll_operator, nll_sum_operator
from zipflm.kernels.reference import statistics_dtype

CALLS = []


# Annotated, unlike other tests: the operator's schema comes from the annotations.
def forward(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    """nll: the sum of each row; lse: the number 7."""
    if not bool(active_N.all()):  # a wait, which no graph could hold
        CALLS.append("forward with inactive rows")
    nll_N = hidden_NE.to(statistics_dtype(hidden_NE.dtype)).sum(1)
    return nll_N, torch.full_like(nll_N, 7.0)


def backward(
    grad_N: Tensor,
    hidden_NE: Tensor,
    weight_VE: Tensor,
    targets_N: Tensor,
    active_N: Tensor,
    lse_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Recognisable numbers in place of gradients."""
    CALLS.append(("backward", grad_N.tolist(), lse_N.tolist()))
    return torch.full_like(hidden_NE, 2.0), torch.full_like(weight_VE, 3.0)


def sum_and_gradients(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of all rows, with its gradient by hidden, and an invented one by weight."""
    total = hidden_NE.to(statistics_dtype(hidden_NE.dtype)).sum()
    d_weight_VE = torch.full_like(weight_VE, 3.0, dtype=total.dtype)
    return total, torch.ones_like(hidden_NE), d_weight_VE


linear_nll = nll_operator("nll_operator_under_test", forward, backward)
linear_nll_sum = nll_sum_operator("nll_sum_operator_under_test", sum_and_gradients)


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def test_gradients_are_what_the_backward_function_says():
    hidden, weight, targets, active = problem(2, 4, 5, 1.1)
    nll = linear_nll(hidden, weight, targets, active)
    d_hidden, d_weight = torch.autograd.grad(nll, (hidden, weight), torch.tensor([0.5, 4.0]))
    assert CALLS == [("backward", [0.5, 4.0], [7.0, 7.0])]
    assert (d_hidden == 2).all() and (d_weight == 3).all()


def test_a_compiler_sees_one_node_and_never_looks_inside():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    arguments = problem(6, 4, 5, 0.0)
    compiled = torch.compile(linear_nll, fullgraph=True, backend=backend)
    assert torch.equal(compiled(*arguments), linear_nll(*arguments))
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert sum("nll_operator_under_test" in name for name in called) == 1
    assert not any("sum" in name or "all" in name.split(".") for name in called)
    assert CALLS == ["forward with inactive rows"] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_pretended_results_have_the_real_shapes_and_types(dtype):
    real = problem(6, 4, 5, 1.1, dtype)
    real_nll = linear_nll(*real)
    real_grads = torch.autograd.grad(real_nll.sum(), real[:2])
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in real]
        fake_nll = linear_nll(*fake)
        fake_grads = torch.autograd.grad(fake_nll.sum(), fake[:2])
    for ours, theirs in zip((fake_nll, *fake_grads), (real_nll, *real_grads), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


def test_pretending_calls_neither_function():
    with FakeTensorMode():
        hidden, weight, targets, active = problem(6, 4, 5, 0.0)
        linear_nll(hidden, weight, targets, active).sum().backward()
    assert CALLS == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_sum_has_its_gradients_times_its_own_as_often_as_asked(dtype):
    hidden, weight, targets, active = problem(2, 4, 5, 1.1, dtype)
    total = linear_nll_sum(hidden, weight, targets, active)
    for factor in (0.5, 4.0):
        grads = torch.autograd.grad(factor * total, (hidden, weight), retain_graph=True)
        assert [(g.dtype, g.unique().item()) for g in grads] == [
            (dtype, factor),
            (dtype, 3 * factor),
        ]


class Ignored(torch.autograd.Function):
    """A number that does not depend on what it is given."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_a_sum_that_does_not_matter_has_no_gradients():
    hidden, weight, targets, active = problem(2, 4, 5, 1.1)
    Ignored.apply(linear_nll_sum(hidden, weight, targets, active)).backward()
    assert all(x.grad is None or not x.grad.any() for x in (hidden, weight))
