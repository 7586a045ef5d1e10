"""Measure the time of an update of an input table, by number of rows.

    python benchmarks/sparse_rows.py [--rows 100000 2000000] [--tokens 4096] [--json FILE]

An update consists of forward pass, backward pass, gradient norm and optimizer step of one table,
with dense or with sparse gradients (`input.sparse`). With sparse gradients, the time should not
depend on the number of rows: the last line shows the time for the largest table divided by the time
for the smallest.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zipflm.config import AdamW
from zipflm.model.inputs import FixedEmbedding
from zipflm.training import optimizers

Row = dict[str, Any]


def update_of(layer: FixedEmbedding, words: Tensor) -> Callable[[], None]:
    """Return a function that makes one training update."""
    all_optimizers = optimizers.build(AdamW(), _Model(layer))
    optimizers.set_rates(all_optimizers, 0.01)

    def update() -> None:
        layer(words).square().sum().backward()
        if layer.sparse:
            assert layer.table.grad is not None
            layer.table.grad = layer.table.grad.coalesce()
        grads = [p.grad for p in layer.parameters() if p.grad is not None]
        grads = [grad._values() if grad.is_sparse else grad for grad in grads]
        norm = torch.nn.utils.get_total_norm(grads)
        optimizers.step(all_optimizers, torch.ones_like(norm), ~torch.isfinite(norm))

    return update


class _Model(nn.Module):
    """The layer and a dense parameter, which the dense optimizer requires."""

    def __init__(self, layer: FixedEmbedding) -> None:
        super().__init__()
        self.input = layer
        self.vector = nn.Parameter(torch.zeros(1, device=layer.table.device))


def seconds(update: Callable[[], None], rounds: int, device: torch.device) -> float:
    taken = []
    for _ in range(rounds + 2):  # the first two create the optimizer's state
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        update()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken[2:])  # the least disturbed one


def measure(
    table_sizes: list[int], dim: int, tokens: int, rounds: int, device: torch.device
) -> dict[str, Any]:
    results: list[Row] = []
    for num_rows in table_sizes:
        # The same words for every table.
        words = torch.randint(min(table_sizes), (tokens,), generator=torch.manual_seed(0)).to(
            device
        )
        for kind in ("dense", "sparse"):
            layer = FixedEmbedding(num_rows, dim, dim, sparse=kind == "sparse").to(device)
            taken = seconds(update_of(layer, words), rounds, device)
            row = {"rows": num_rows, "gradients": kind, "ms": round(1000 * taken, 3)}
            results.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            del layer
    return {"rows": results, "ratios": _ratios(results)}


def _ratios(results: list[Row]) -> dict[str, float]:
    """Divide the time for the largest table by that for the smallest, for each kind of gradient."""
    few, many = (choose(row["rows"] for row in results) for choose in (min, max))
    times = {(row["rows"], row["gradients"]): row["ms"] for row in results}
    return {
        kind: round(times[many, kind] / ms, 2) for (rows, kind), ms in times.items() if rows == few
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 2_000_000])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    result = measure(options.rows, options.dim, options.tokens, options.rounds, device)
    print("  ".join(f"{key}: {value}" for key, value in result["ratios"].items()))
    if options.json is not None:
        metadata = {"device": options.device, "torch": torch.__version__, "tokens": options.tokens}
        options.json.write_text(json.dumps(metadata | result, indent=1) + "\n")


if __name__ == "__main__":
    main()
