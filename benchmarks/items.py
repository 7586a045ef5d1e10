"""A training step of a next-item model: the adaptive pair against a plain table and softmax.

    python benchmarks/items.py [--items 500000] [--dim 128] [--users 16] [--length 32]

Items are drawn by Zipf's law, a GRU stands between input and output, and a step is forward,
backward and Adam. `plain` is `nn.Embedding`, `nn.Linear` and `F.cross_entropy`; `plain, tied`
shares one table between the two. Time is the median; memory is the peak on top of what the process
held before the model was made: resident memory on a CPU, where each model therefore gets a process
of its own, and allocated memory on a GPU.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch
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
        """The mean loss of every next item."""
        hidden, _ = self.history(self.items(sequences[:, :-1]))
        loss: Tensor = self.choice(hidden, sequences[:, 1:])
        return loss


class Plain(nn.Module):
    """A table of full width and a softmax over all items."""

    def __init__(self, num_items: int, dim: int, *, tied: bool = False) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items, dim)
        nn.init.normal_(self.items.weight, std=dim**-0.5)
        self.history = nn.GRU(dim, dim, batch_first=True)
        self.choice = nn.Linear(dim, num_items, bias=False)
        if tied:
            self.choice.weight = self.items.weight

    def forward(self, sequences: Tensor) -> Tensor:
        """The mean loss of every next item."""
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
    """Parameters, median milliseconds of a step, peak gigabytes."""
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

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(sequences)
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device
        return 1000 * (time.perf_counter() - start)

    for _ in range(min(2, options.repeats)):
        step()
    times = sorted(step() for _ in range(options.repeats))
    peak = _resident() if device == "cpu" else torch.cuda.max_memory_allocated()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "ms": times[len(times) // 2],
        "peak_gb": (peak - before) / 1e9,
    }


def _resident() -> int:
    """Peak of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _measure_elsewhere(name: str, arguments: list[str]) -> dict[str, float]:
    """The same in a process of its own, whose peak is that of this model alone."""
    command = [sys.executable, __file__, *arguments, "--only", name]
    numbers: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return numbers


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, choices=["cuda", "cpu"])
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="items of a user that are predicted")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=MODELS, help="print the numbers of this model as JSON")
    options = parser.parse_args(arguments)
    if options.only:
        print(json.dumps(measure(options.only, options)))
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(
        f"{name}, torch {torch.__version__}, {options.items:,} items, {options.dim} wide, ", end=""
    )
    print(f"{options.users * options.length:,} predictions a step")
    print(f"{'model':12} {'parameters':>12} {'ms a step':>10} {'peak GB':>8}")
    for model in MODELS:
        row = _measure_elsewhere(model, arguments)
        print(
            f"{model:12} {row['parameters']:12,} {row['ms']:10.1f} {row['peak_gb']:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
