import pytest
import torch
from nll_problems import problem
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from zipflm.kernels import checked_ids, linear_nll, linear_nll_chunked
from zipflm.kernels.operators import can_skip_dispatch


def test_plain_values_can_skip_dispatch():
    assert can_skip_dispatch(torch.zeros(2), torch.tensor([1]))
    assert can_skip_dispatch()


def test_gradients_need_dispatch():
    weight = nn.Parameter(torch.zeros(2))
    assert not can_skip_dispatch(torch.zeros(2), weight)
    with torch.no_grad():
        assert can_skip_dispatch(weight)
    with torch.inference_mode():
        assert can_skip_dispatch(weight)


def test_compilers_and_fake_tensors_need_dispatch():
    check = torch.compile(lambda x: x + int(can_skip_dispatch(x)), backend="eager", fullgraph=True)
    assert check(torch.zeros(1)).item() == 0
    with FakeTensorMode():
        fake = torch.zeros(2)
    assert not can_skip_dispatch(fake)
    with FlopCounterMode(display=False):
        assert not can_skip_dispatch(torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_loss_is_the_same_with_and_without_gradient(dtype):
    hidden, weight = torch.randn(7, 5, dtype=dtype), torch.randn(11, 5, dtype=dtype)
    targets, active = torch.arange(7), torch.arange(7) != 3
    with_grad = linear_nll(hidden, weight.clone().requires_grad_(), targets, active)
    without = linear_nll(hidden, weight, targets, active)
    assert with_grad.requires_grad and not without.requires_grad
    assert torch.equal(with_grad, without)


def test_checked_ids_are_a_copy():
    ids = torch.tensor([1, 2])
    checked_ids("words", ids, 3)[0] = 0
    assert ids.tolist() == [1, 2]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace")
def test_traces_work_for_other_batch_sizes():
    weight = torch.randn(50, 8)

    def loss(hidden, targets):
        targets = checked_ids("targets", targets, 50)
        return linear_nll(hidden, weight, targets, torch.ones_like(targets, dtype=torch.bool))

    traced = torch.jit.trace(loss, (torch.randn(4, 8), torch.arange(4)))
    hidden, targets = torch.randn(9, 8), torch.arange(9)
    assert torch.equal(traced(hidden, targets), loss(hidden, targets))


def test_gradients_flow_out_of_transforms():
    """Inside a transform, requires_grad of an intermediate tensor is False."""
    hidden, targets = torch.randn(6, 16), torch.arange(6)
    active, x = targets >= 0, torch.tensor(2.0)
    found = {}
    for impl in ("auto", "reference"):
        weight = torch.randn(50, 16, generator=torch.manual_seed(1)).requires_grad_()

        def loss(x, weight=weight, impl=impl):
            return x * x * linear_nll(hidden, weight * 1, targets, active, impl).sum()

        torch.func.grad(loss)(x).backward()
        found[impl] = weight.grad
    torch.testing.assert_close(found["auto"], found["reference"])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_checked_ids_works_in_vmap():
    ids = torch.tensor([[1, 2], [0, 1]])
    assert torch.equal(torch.func.vmap(lambda row: checked_ids("words", row, 3))(ids), ids)


def test_inactive_ids_are_not_checked():
    ids, active = torch.tensor([-100, 4, 99]), torch.tensor([False, True, False])
    assert checked_ids("targets", ids, 10, active).tolist() == [0, 4, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_error_names_the_first_bad_id(compiled):
    check = torch.compile(checked_ids, backend="eager", fullgraph=True) if compiled else checked_ids
    with pytest.raises(ValueError, match="words=12: outside the vocabulary of 10 words; .*0 to 9"):
        check("words", torch.tensor([1, 12, 13]), 10)


def test_compilers_see_a_single_node():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    arguments = problem(6, 4, 5, 0.5)
    compiled = torch.compile(linear_nll_chunked.linear_nll, fullgraph=True, backend=backend)
    assert torch.equal(compiled(*arguments), linear_nll_chunked.linear_nll(*arguments))
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert sum("linear_nll_chunked" in name for name in called) == 1
    assert not any("log" in name or "exp" in name for name in called)


class Ignored(torch.autograd.Function):
    """A function without a gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_unused_sum_has_no_gradients():
    hidden, weight, targets, active = problem(2, 4, 5, 1.1)
    Ignored.apply(linear_nll_chunked.linear_nll_sum(hidden, weight, targets, active)).backward()
    assert all(x.grad is None or not x.grad.any() for x in (hidden, weight))
