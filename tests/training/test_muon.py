import pytest
import torch
from numerics import assert_close

from zipflm.training.muon import StackedMuon, orthogonalise

OPTIONS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def train(make, skip=()):
    torch.manual_seed(0)
    shapes = [(24, 16), (16, 16), (24, 16), (16, 40), (16, 16)]
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = make(params, **OPTIONS)
    for update in range(4):
        for param in params:
            param.grad = torch.randn_like(param)
        if update in skip:
            params[1].grad[0, 0] = float("nan")
        if isinstance(optimizer, StackedMuon):
            optimizer.found_inf = torch.tensor(float(update in skip))
        elif update in skip:
            continue
        optimizer.step()
    return params, [optimizer.state[param]["momentum_buffer"] for param in params]


@pytest.mark.parametrize("skip", [(), (0,), (1, 2)])
def test_equals_torchs_muon_and_skips_what_it_is_told_to(skip):
    for ours, theirs in zip(train(StackedMuon, skip), train(torch.optim.Muon, skip), strict=True):
        for mine, expected in zip(ours, theirs, strict=True):
            # The iteration runs in bfloat16, and stacked products round in another order.
            assert_close(mine, expected, 5e-3)


def test_a_skipped_update_changes_no_bit():
    param = torch.nn.Parameter(torch.randn(8, 4))
    optimizer = StackedMuon([param], **OPTIONS)
    param.grad, optimizer.found_inf = torch.randn(8, 4), torch.tensor(0.0)
    optimizer.step()
    before = param.detach().clone(), optimizer.state[param]["momentum_buffer"].clone()
    param.grad, optimizer.found_inf = torch.full((8, 4), float("inf")), torch.tensor(1.0)
    optimizer.step()
    assert torch.equal(param, before[0])
    assert torch.equal(optimizer.state[param]["momentum_buffer"], before[1])


@pytest.mark.parametrize("shape", [(3, 20, 12), (3, 12, 20)])
def test_singular_values_move_to_one(shape):
    matrices = orthogonalise(torch.randn(shape), (3.4445, -4.775, 2.0315), 5, 1e-7)
    values = torch.linalg.svdvals(matrices.float())
    assert values.min() > 0.5 and values.max() < 1.5
