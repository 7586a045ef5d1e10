"""Optimizers for sparse gradients: the usual ones where there is a gradient, nothing elsewhere."""

import pytest
import torch
from torch import nn

from zipflm.training import rowwise, touched_rows
from zipflm.training.nesterov import NesterovMomentum
from zipflm.training.rowwise import RowwiseAdamW, RowwiseNesterov

ADAMW = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
PAIRS = {
    "Nesterov": (
        lambda p: RowwiseNesterov(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: NesterovMomentum(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    ),
    "plain": (
        lambda p: RowwiseNesterov(p, lr=0.1, momentum=0.0),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ),
    "AdamW": (lambda p: RowwiseAdamW(p, **ADAMW), lambda p: torch.optim.AdamW(p, **ADAMW)),
}
SIZE = (12, 4)


@pytest.fixture(params=["coalesced", "without waiting"])
def _way(request, monkeypatch):
    """Sums by row as on a CPU and as on a device."""
    if request.param == "without waiting":
        monkeypatch.setattr(rowwise, "added_up", touched_rows._added_up_without_waiting)


def table():
    return nn.Parameter(torch.randn(SIZE, generator=torch.manual_seed(0)))


def gradients(rows, seed=0):
    """A sparse gradient and the same as a dense one."""
    sparse = sparse_of(rows, torch.randn(len(rows), SIZE[1], generator=torch.manual_seed(seed)))
    return sparse, sparse.to_dense()


def sparse_of(rows, entries):
    return torch.sparse_coo_tensor(torch.tensor([[*rows]]), entries, SIZE, check_invariants=True)


def everything(optimizer, weights):
    """The weights and the optimizer's state, as copies."""
    return [weights.detach().clone(), *(v.clone() for v in optimizer.state[weights].values())]


def take(optimizer, weights, gradient):
    weights.grad = gradient
    optimizer.step()
    return everything(optimizer, weights)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", PAIRS)
def test_where_every_row_has_a_gradient_it_is_the_usual_optimizer(kind):
    ours, theirs = table(), table()
    rowwise_optimizer, usual = (
        make([w]) for make, w in zip(PAIRS[kind], (ours, theirs), strict=True)
    )
    for seed in range(4):
        sparse, dense = gradients([*range(12), 3, 3], seed)
        take(rowwise_optimizer, ours, sparse)
        take(usual, theirs, dense)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_way")
def test_plain_descent_equals_the_dense_one_to_the_bit():
    ours, theirs = table(), table()
    sparse, dense = gradients([2, 5, 11])
    take(PAIRS["plain"][0]([ours]), ours, sparse)
    take(PAIRS["plain"][1]([theirs]), theirs, dense)
    assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", PAIRS)
def test_rows_without_a_gradient_stay_with_their_state(kind):
    """Also a row whose gradient is 0, and whatever an earlier update has done to it."""
    weights = table()
    optimizer = PAIRS[kind][0]([weights])
    before = take(optimizer, weights, gradients(range(12))[0])
    zero = sparse_of([7], torch.zeros(1, 4))
    after = take(optimizer, weights, gradients([2, 5, 2], seed=1)[0] + zero)
    for old, new in zip(before, after, strict=True):
        if old.ndim == 2:
            assert (old != new).any(1).nonzero().flatten().tolist() == [2, 5]


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0])
def test_a_bad_update_changes_nothing(kind, value):
    weights = table()
    optimizer = PAIRS[kind][0]([weights])
    optimizer.found_inf = torch.tensor(0.0)
    before = take(optimizer, weights, gradients([1, 2, 3])[0])
    optimizer.found_inf = torch.tensor(1.0)
    after = take(optimizer, weights, gradients([2, 3, 4])[0] * value)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", PAIRS)
def test_a_bad_first_update_leaves_the_weights_alone(kind):
    weights = table()
    optimizer = PAIRS[kind][0]([weights])
    optimizer.found_inf = torch.tensor(1.0)
    take(optimizer, weights, gradients([1, 2])[0] * float("nan"))
    assert torch.equal(weights, table())
    optimizer.found_inf.zero_()
    after = take(optimizer, weights, gradients([1])[0])
    assert all(torch.isfinite(tensor).all() for tensor in after)


@pytest.mark.parametrize("kind", PAIRS)
def test_gradients_are_divided_by_the_scale(kind):
    ours, theirs = table(), table()
    scaled, plain = (PAIRS[kind][0]([weights]) for weights in (ours, theirs))
    scaled.grad_scale = torch.tensor(4.0)
    sparse, _ = gradients([1, 5, 5])
    take(scaled, ours, sparse * 4)
    take(plain, theirs, sparse)
    assert torch.equal(ours, theirs)
