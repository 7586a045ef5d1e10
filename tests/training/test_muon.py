import pytest
import torch
from numerics import assert_close
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from training_runs import in_processes

from zipflm.distributed.processes import started
from zipflm.training.optimizers import StackedMuon, orthogonalize

OPTIONS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def train(make, skip=(), place=lambda tensor: tensor):
    torch.manual_seed(0)
    # Even and odd numbers of rows for two processes, and a single row.
    shapes = [(24, 16), (16, 16), (24, 16), (17, 40), (16, 16), (1, 8)]
    params = [torch.nn.Parameter(place(torch.randn(shape))) for shape in shapes]
    optimizer = make(params, **OPTIONS)
    for update in range(4):
        for index, param in enumerate(params):
            grad = torch.randn(shapes[index])
            if update in skip and index == 1:
                grad[0, 0] = float("nan")
            param.grad = place(grad)
        if isinstance(optimizer, StackedMuon):
            optimizer.found_inf = torch.tensor(float(update in skip))
        elif update in skip:
            continue
        optimizer.step()
    return params, [optimizer.state[param]["momentum_buffer"] for param in params]


@pytest.mark.parametrize("skip", [(), (0,), (1, 2)])
def test_equals_torch_and_skips_bad_updates(skip):
    for ours, theirs in zip(train(StackedMuon, skip), train(torch.optim.Muon, skip), strict=True):
        for mine, expected in zip(ours, theirs, strict=True):
            # The iteration runs in bfloat16, and stacked products round in another order.
            assert_close(mine, expected, 5e-3)


def train_sharded(skip):
    with started("cpu"):
        mesh = init_device_mesh("cpu", (2,))
        sharded = train(StackedMuon, skip, lambda whole: distribute_tensor(whole, mesh, [Shard(0)]))
        for ours, theirs in zip(sharded, train(StackedMuon, skip), strict=True):
            for mine, expected in zip(ours, theirs, strict=True):
                assert isinstance(mine, DTensor)
                torch.testing.assert_close(mine.full_tensor(), expected)


@pytest.mark.multi_process
def test_sharded_matrices_get_the_same_update():
    assert in_processes(2, train_sharded, (1, 2)) == [0, 0]


@pytest.mark.parametrize("shape", [(3, 20, 12), (3, 12, 20)])
def test_singular_values_move_to_one(shape):
    matrices = orthogonalize(torch.randn(shape), (3.4445, -4.775, 2.0315), 5, 1e-7)
    values = torch.linalg.svdvals(matrices.float())
    assert values.min() > 0.5 and values.max() < 1.5
