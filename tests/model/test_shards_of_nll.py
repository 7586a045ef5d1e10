"""`linear_nll` over shards of the words, combined."""

import pytest
import torch
from nll_problems import DEVICE, NAMES, problem, truth_of
from numerics import assert_close

from zipflm.kernels import linear_nll_chunked
from zipflm.model.sharded_tables import shard_gradients, shard_statistics

# Sizes of the shards of 131 words.
CUTS = {"three": (50, 50, 31), "an empty one": (131, 0), "one": (131,), "one word": (130, 1)}
GRADIENT = (-1, 2)


def in_shards(kernels, sizes, hidden, weight, targets, active):
    """`losses_and_gradients`, computed from separate shards."""
    shards = weight.detach().split(sizes)
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    locals_ = [
        (targets - first).where((targets >= first) & (targets < first + size), -1)
        for first, size in zip(firsts, sizes, strict=True)
    ]
    hidden = hidden.detach()
    statistics = [
        shard_statistics(kernels, hidden, shard, mine, active)
        for shard, mine in zip(shards, locals_, strict=True)
    ]
    lse = torch.stack([each[0] for each in statistics]).logsumexp(0)
    nll = (lse - sum(each[1] for each in statistics)).where(active, 0.0)
    grad = torch.linspace(*GRADIENT, len(nll), dtype=nll.dtype, device=nll.device)
    gradients = [
        shard_gradients(kernels, grad, hidden, shard, mine, active, lse)
        for shard, mine in zip(shards, locals_, strict=True)
    ]
    d_hidden, d_weight = zip(*gradients, strict=True)
    return nll, sum(d_hidden), torch.cat(d_weight)


@pytest.mark.parametrize("share", [0.4, 0.0, 1.1], ids=["some", "none", "all"])
@pytest.mark.parametrize("cut", CUTS)
def test_combined_shards_match_the_whole(cut, share):
    arguments = problem(70, 24, 131, share, torch.float64)
    ours = in_shards(linear_nll_chunked, CUTS[cut], *arguments)
    for name, mine, exact in zip(NAMES, ours, truth_of(*arguments), strict=True):
        assert_close(mine, exact, 1e-12, name)


@pytest.mark.parametrize("cut", CUTS)
def test_combined_shards_of_gpu_kernels_match_the_whole(cut):
    pytest.importorskip("triton")
    from zipflm.kernels import linear_nll_triton

    arguments = problem(70, 24, 131, 0.6, device=DEVICE)
    ours = in_shards(linear_nll_triton, CUTS[cut], *arguments)
    for name, mine, exact in zip(NAMES, ours, truth_of(*arguments), strict=True):
        assert_close(mine, exact, 3e-6, name)
