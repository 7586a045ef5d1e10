"""Tables sharded over several processes give the results of one process."""

import pytest
import torch
import torch.distributed as dist
from numerics import assert_close
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from training_runs import in_processes

from zipflm.model.adaptive_softmax import AdaptiveSoftmax
from zipflm.model.bands import Bands
from zipflm.model.inputs import AdaptiveEmbedding, FixedEmbedding
from zipflm.model.outputs import FullSoftmax
from zipflm.model.sharded_tables import TableShards, shard_tables

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

VOCABULARY, DIM = 1003, 12
# The second band has two words, fewer than there are processes; no width divides another.
BANDS = Bands(VOCABULARY, (100, 102, 400), DIM, factor=1.5)


def adaptive(tie, dim=DIM):
    embedding = AdaptiveEmbedding(BANDS, dim, padding_idx=1)
    tied_to = None if tie == "none" else embedding
    return embedding, AdaptiveSoftmax(BANDS, dim, tied_to=tied_to, tie=tie)


def fixed(tied, width=DIM):
    embedding = FixedEmbedding(VOCABULARY, width, DIM, padding_idx=1)
    return embedding, FullSoftmax(VOCABULARY, width, DIM, tied_to=embedding if tied else None)


def plain_band(tie):
    bands = Bands(VOCABULARY, (), DIM)
    embedding = AdaptiveEmbedding(bands)
    return embedding, AdaptiveSoftmax(bands, tied_to=embedding, tie=tie)


PAIRS = {
    "ADP-T": lambda: adaptive("projections"),
    "ADP-T, embeddings": lambda: adaptive("embeddings"),
    "ADP-T, head": lambda: adaptive("head", dim=8),
    "ADP": lambda: adaptive("none"),
    "ADP, projected": lambda: adaptive("none", dim=8),
    "ASM": lambda: (FixedEmbedding(VOCABULARY, DIM, DIM, 1), adaptive("none")[1]),
    "SM": lambda: fixed(tied=False),
    "SM-T, BPE-T": lambda: fixed(tied=True),
    "SM-T, projected": lambda: fixed(tied=True, width=7),
    "one band": lambda: plain_band("projections"),
    "CNN": lambda: (nn.Embedding(VOCABULARY, DIM), adaptive("none")[1]),
}


class Pair(nn.Module):
    """A model with a single matrix between its input and output layers."""

    def __init__(self, name):
        super().__init__()
        self.input, self.output = PAIRS[name]()
        self.middle = nn.Linear(self.output.in_dim, self.output.in_dim)


def tokens(rank, highest=VOCABULARY):
    """Words, targets and mask of a process; each process has a different number."""
    generator = torch.Generator().manual_seed(rank)
    words, targets = torch.randint(highest, (2, 2, 7 + rank), generator=generator)
    words[0, 0] = 1  # padding
    return words, targets, torch.rand(targets.shape, generator=generator) < 0.7


def run(pair, words, targets, scored, method):
    """Run forward and backward; `method` is `nll`, with a different gradient per token, or
    `nll_sum`."""
    embedded = pair.input(words)
    hidden = pair.middle(embedded).tanh()
    hidden.retain_grad()
    nll = getattr(pair.output, method)(hidden, targets, scored)
    weight = torch.cos(targets.to(nll.dtype)) if method == "nll" else torch.tensor(0.5)
    (nll * weight).sum().backward()
    return embedded, hidden, nll


def compare(name, shards, method, highest=VOCABULARY):
    """Compare results and gradients with those of one process with all tokens."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = Pair(name).double()
    torch.manual_seed(0)
    part = Pair(name).double()
    shard_tables(part, shards)
    expected = [run(whole, *tokens(each, highest), method) for each in range(size)][rank]
    ours = run(part, *tokens(rank, highest), method)
    for what, mine, theirs in zip(("embedded", "hidden", "nll"), ours, expected, strict=True):
        assert_close(mine, theirs, 1e-12, f"{name}, {what}")
    assert_close(ours[1].grad, expected[1].grad, 1e-12, f"{name}, gradient of hidden")
    gradients = {n: p.grad for n, p in whole.named_parameters()}
    for parameter_name, parameter in part.named_parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            first, end = shards.rows(len(parameter))
            assert parameter.to_local().shape[0] == end - first
            gradient = gradient.full_tensor()
        else:  # replicated: DDP would sum the gradients
            dist.all_reduce(gradient)
        assert_close(gradient, gradients[parameter_name], 1e-12, f"{name}, {parameter_name}")


def work(function, *arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    function(init_device_mesh("cpu", (dist.get_world_size(),)), *arguments)
    dist.destroy_process_group()


class CountingShards(TableShards):
    """Counts the bytes sent to other processes."""

    sent = 0

    def gather(self, own):
        self.sent += (self.size - 1) * own.nbytes
        return super().gather(own)

    def all_to_all(self, parts):
        self.sent += (self.size - 1) * parts.nbytes // self.size
        return super().all_to_all(parts)


def count_bytes(mesh):
    """An update sends as many bytes as the docs of the module say."""
    shards, pair = CountingShards(mesh), Pair("ADP-T")
    shard_tables(pair, shards)
    words, targets, scored = tokens(0)
    run(pair, words, targets, scored, "nll_sum")
    total, width, bands = shards.size * words.numel(), sum(BANDS.widths), BANDS.num_bands
    # Input and output vectors each have the width of all bands together.
    expected = 2 * total * width * 4 + 2 * total * width * 4 + total * (16 + 16 * bands)
    assert shards.sent == expected * (shards.size - 1) // shards.size


def compare_all(mesh):
    shards = TableShards(mesh)
    for name in PAIRS:
        compare(name, shards, "nll")
        compare(name, shards, "nll_sum")
    compare("ADP-T", shards, "nll", highest=100)  # only one band has words
    compare("SM", shards, "nll", highest=5)  # one process owns all words
    count_bytes(mesh)


@pytest.mark.parametrize("processes", [2, 3])
def test_losses_and_gradients_match_one_process(processes):
    assert in_processes(processes, work, compare_all) == [0] * processes
