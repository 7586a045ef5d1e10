"""Time and memory of the output layer's one operation, forward and backward.

    python benchmarks/linear_nll.py [--tokens 32768] [--json FILE]

The bands are WikiText-103's; `active` is the share of tokens a band has there. `plain` is
`kernels.reference`, which builds all logits of all tokens; `ours` is what `impl="auto"` chooses.
Memory is measured on a GPU only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zipflm.kernels import Impl, linear_nll

# Width, words, share of the tokens.
BANDS = {"head": (1024, 20_002, 1.0), "tail 1": (256, 40_000, 0.07), "tail 2": (64, 207_744, 0.03)}

# All tokens by all words of a band this large do not fit; a quarter of the tokens does.
LARGE = 100_000


def measure(
    impl: Impl, device: str, tokens: int, width: int, words: int, active: float, repeats: int
) -> dict[str, float]:
    """Median milliseconds, and on a GPU the gigabytes on top of the inputs."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    hidden = torch.randn(tokens, width, **options).requires_grad_()
    weight = (torch.randn(words, width, **options) * width**-0.5).requires_grad_()
    targets = torch.randint(words, (tokens,), device=device)
    mask = torch.rand(tokens, device=device) < active

    def step() -> None:
        linear_nll(hidden, weight, targets, mask, impl).sum().backward()

    for _ in range(min(3, repeats)):
        step()
    if device == "cpu":
        return {"ms": _median([_milliseconds(step) for _ in range(repeats)])}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times = [_milliseconds_on_gpu(step) for _ in range(repeats)]
    peak = torch.cuda.max_memory_allocated() - before
    return {"ms": _median(times), "peak_gb": peak / 1e9}


def _milliseconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)


def _milliseconds_on_gpu(step: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--shrink", type=int, default=1, help="divide the words of each band by it")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", help="also write the numbers here")
    options = parser.parse_args(arguments)
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": git.stdout.strip() if git.returncode == 0 else None,
        "tokens": options.tokens,
        "bands": {},
    }
    print(f"{'band':8} {'plain ms':>9} {'ours ms':>9} {'ratio':>6} {'plain GB':>9} {'ours GB':>8}")
    for name, (width, all_words, active) in BANDS.items():
        words = all_words // options.shrink
        sizes = (width, words, active, options.repeats)
        ours = measure("auto", options.device, options.tokens, *sizes)
        share = 4 if words > LARGE else 1
        plain = measure("reference", options.device, options.tokens // share, *sizes)
        plain = {key: value * share for key, value in plain.items()}
        result["bands"][name] = {"plain": plain, "ours": ours}
        memory = [f"{run['peak_gb']:.2f}" if "peak_gb" in run else "-" for run in (plain, ours)]
        print(
            f"{name:8} {plain['ms']:9.2f} {ours['ms']:9.2f} {plain['ms'] / ours['ms']:6.1f} "
            f"{memory[0]:>9} {memory[1]:>8}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
