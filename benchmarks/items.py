"""Time and memory of a training step of a next-item model: adaptive layers or a plain softmax.

    python benchmarks/items.py [--items 500000] [--dim 128] [--users 16] [--length 32]

Items follow Zipf's law, the decoder is a GRU, and a step is forward, backward and Adam. `plain` is
`nn.Embedding`, `nn.Linear` and `F.cross_entropy`; `plain, tied` shares one table. Each model
runs in its own process. Time is the median. Memory is the peak minus the memory before the model
was built: resident memory on a CPU, allocated memory on a GPU.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

import numpy as np
import torch
from common import parser_of, seconds, title
from torch import Tensor, nn
from torch.nn import functional as F

from zipflm import AdaptiveEmbedding, AdaptiveSoftmax, Bands


class Pair(nn.Module):
    """Adaptive input and adaptive softmax with shared weights."""

    def __init__(self, num_items: int, dim: int) -> None:
        super().__init__()
        bands = Bands.suggest(_popularity(num_items), dim=dim)
        self.items = AdaptiveEmbedding(bands)
        self.history = nn.GRU(dim, dim, batch_first=True)
        self.choice = AdaptiveSoftmax(bands, tied_to=self.items, tie="projections")

    def forward(self, sequences: Tensor) -> Tensor:
        """Return the mean loss over all next items."""
        hidden, _ = self.history(self.items(sequences[:, :-1]))
        loss: Tensor = self.choice(hidden, sequences[:, 1:])
        return loss


class Plain(nn.Module):
    """A full-width table and a softmax over all items."""

    def __init__(self, num_items: int, dim: int, *, tied: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items, dim)
        nn.init.normal_(self.items.weight, std=dim**-0.5)
        self.history = nn.GRU(dim, dim, batch_first=True)
        self.choice = nn.Linear(dim, num_items, bias=False)
        if tied:
            self.choice.weight = self.items.weight

    def forward(self, sequences: Tensor) -> Tensor:
        hidden, _ = self.history(self.items(sequences[:, :-1]))
        return F.cross_entropy(self.choice(hidden).flatten(0, 1), sequences[:, 1:].flatten())


MODELS = {
    "plain": Plain,
    "plain, tied": lambda num_items, dim: Plain(num_items, dim, tied=True),
    "pair": Pair,
}


def _popularity(num_items: int) -> np.ndarray:
    return 1 / np.arange(1, num_items + 1)


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the number of parameters, median milliseconds per step and peak gigabytes."""
    device = options.device
    torch.manual_seed(0)
    popularity = _popularity(options.items)
    drawn = np.random.default_rng(0).choice(
        options.items, (options.users, options.length + 1), p=popularity / popularity.sum()
    )
    sequences = torch.from_numpy(drawn).to(device)
    before = _resident() if device == "cpu" else torch.cuda.memory_allocated()
    model = MODELS[name](options.items, options.dim).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(sequences).backward()
        optimizer.step()

    for _ in range(min(2, options.repeats)):
        step()
    times = sorted(1000 * seconds(step, device) for _ in range(options.repeats))
    peak = _resident() if device == "cpu" else torch.cuda.max_memory_allocated()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "ms": times[len(times) // 2],
        "peak_gb": (peak - before) / 1e9,
    }


def _resident() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _measure_in_process(name: str, arguments: list[str]) -> dict[str, float]:
    """Measure in a new process, so that the peak is that of this model alone."""
    command = [sys.executable, __file__, *arguments, "--only", name]
    numbers: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return numbers


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = parser_of(__doc__)
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="predicted items per user")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=MODELS, help="print the results of one model as JSON")
    options = parser.parse_args(arguments)
    if options.only:
        print(json.dumps(measure(options.only, options)))
        return
    sizes = f"{options.items:,} items, {options.dim} wide"
    predictions = f"{options.users * options.length:,} predictions per step"
    print(title(options.device, sizes, predictions))
    print(f"{'model':12} {'parameters':>12} {'ms/step':>10} {'peak GB':>8}")
    for model in MODELS:
        row = _measure_in_process(model, arguments)
        print(
            f"{model:12} {row['parameters']:12,} {row['ms']:10.1f} {row['peak_gb']:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
