"""Plain DDP works without `find_unused_parameters`, even if a rank has empty bands."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numerics import assert_close
from torch.nn.parallel import DistributedDataParallel

from zipflm import LanguageModel, preset

# Rank 0 only has head words, rank 1 has words of all bands.
WORDS = torch.tensor([[2, 5, 17, 399], [2, 500, 3999, 7]])
TARGETS = torch.tensor([[5, 17, 399, 2], [500, 3999, 7, 1700]])


def make_model():
    torch.manual_seed(0)
    return LanguageModel(preset("tiny", "ADP-T")).double().eval()


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, words, targets):
        return self.model.nll(words, targets).mean()


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    model = make_model()
    loss = DistributedDataParallel(Loss(model))
    for _ in range(2):  # DDP reports unused parameters in the second step
        model.zero_grad()
        loss(WORDS[rank : rank + 1], TARGETS[rank : rank + 1]).backward()
    if rank == 0:
        torch.save({name: p.grad for name, p in model.named_parameters()}, f"{folder}/grads.pt")
    dist.barrier()  # a process that leaves early can abort the other one
    dist.destroy_process_group()


@pytest.mark.multi_process
def test_gradients_match_one_process(tmp_path):
    mp.spawn(work, (str(tmp_path),), nprocs=2)
    model = make_model()
    model.nll(WORDS, TARGETS).mean().backward()
    gradients = torch.load(tmp_path / "grads.pt", weights_only=True)
    for name, parameter in model.named_parameters():
        assert_close(gradients[name], parameter.grad, 1e-12, name)
