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


def test_a_gradient_needs_dispatch_unless_none_is_wanted():
    weight = nn.Parameter(torch.zeros(2))
    assert not can_skip_dispatch(torch.zeros(2), weight)
    with torch.no_grad():
        assert can_skip_dispatch(weight)
    with torch.inference_mode():
        assert can_skip_dispatch(weight)


def test_compilers_and_tensors_without_values_need_dispatch():
    look = torch.compile(lambda x: x + int(can_skip_dispatch(x)), backend="eager", fullgraph=True)
    assert look(torch.zeros(1)).item() == 0
    with FakeTensorMode():
        fake = torch.zeros(2)
    assert not can_skip_dispatch(fake)
    with FlopCounterMode(display=False):
        assert not can_skip_dispatch(torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_with_and_without_a_gradient_the_loss_is_the_same(dtype):
    hidden, weight = torch.randn(7, 5, dtype=dtype), torch.randn(11, 5, dtype=dtype)
    targets, active = torch.arange(7), torch.arange(7) != 3
    seen = linear_nll(hidden, weight.clone().requires_grad_(), targets, active)
    unseen = linear_nll(hidden, weight, targets, active)
    assert seen.requires_grad and not unseen.requires_grad
    assert torch.equal(seen, unseen)


def test_checked_ids_are_a_copy():
    ids = torch.tensor([1, 2])
    checked_ids("words", ids, 3)[0] = 0
    assert ids.tolist() == [1, 2]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace")
def test_a_trace_holds_for_other_numbers_of_rows():
    weight = torch.randn(50, 8)

    def loss(hidden, targets):
        targets = checked_ids("targets", targets, 50)
        return linear_nll(hidden, weight, targets, torch.ones_like(targets, dtype=torch.bool))

    traced = torch.jit.trace(loss, (torch.randn(4, 8), torch.arange(4)))
    hidden, targets = torch.randn(9, 8), torch.arange(9)
    assert torch.equal(traced(hidden, targets), loss(hidden, targets))


def test_a_gradient_from_outside_of_a_transform_is_not_lost():
    """There the weight, once something was done to it, does not say that it requires one."""
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
def test_ids_are_checked_in_a_batch_of_calls_too():
    ids = torch.tensor([[1, 2], [0, 1]])
    assert torch.equal(torch.func.vmap(lambda row: checked_ids("words", row, 3))(ids), ids)


def test_ids_that_are_not_active_are_not_looked_at():
    ids, active = torch.tensor([-100, 4, 99]), torch.tensor([False, True, False])
    assert checked_ids("targets", ids, 10, active).tolist() == [0, 4, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_bad_id_is_named(compiled):
    check = torch.compile(checked_ids, backend="eager", fullgraph=True) if compiled else checked_ids
    with pytest.raises(ValueError, match="words=12: outside the vocabulary of 10 words; .*0 to 9"):
        check("words", torch.tensor([1, 12, 13]), 10)


def test_a_compiler_sees_one_node_and_never_looks_inside():
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
    """A number that does not depend on what it is given."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_a_sum_that_does_not_matter_has_no_gradients():
    hidden, weight, targets, active = problem(2, 4, 5, 1.1)
    Ignored.apply(linear_nll_chunked.linear_nll_sum(hidden, weight, targets, active)).backward()
    assert all(x.grad is None or not x.grad.any() for x in (hidden, weight))
