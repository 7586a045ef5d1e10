"""Time and memory of the output layer's one operation, forward and backward, on a GPU.

    python benchmarks/linear_nll.py [--tokens 32768] [--json FILE]

The bands are WikiText-103's; `active` is the share of tokens a band has there. `plain` is
`kernels.reference`, which builds all logits of all tokens; `ours` what `impl="auto"` takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess

import torch

from zipflm.kernels import linear_nll

BANDS = {"head": (1024, 20_002, 1.0), "tail 1": (256, 40_000, 0.07), "tail 2": (64, 207_744, 0.03)}


def measure(impl: str, tokens: int, width: int, words: int, active: float) -> dict[str, float]:
    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    hidden = torch.randn(tokens, width, **options).requires_grad_()
    weight = (torch.randn(words, width, **options) * width**-0.5).requires_grad_()
    targets = torch.randint(words, (tokens,), device="cuda")
    mask = torch.rand(tokens, device="cuda") < active

    def step() -> None:
        linear_nll(hidden, weight, targets, mask, impl).sum().backward()

    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() - before
    return {"ms": sorted(times)[len(times) // 2], "peak_gb": peak / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--json", help="also write the numbers here")
    options = parser.parse_args()
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    result = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": git.stdout.strip() if git.returncode == 0 else None,
        "tokens": options.tokens,
        "bands": {},
    }
    print(f"{'band':8} {'plain ms':>9} {'ours ms':>9} {'ratio':>6} {'plain GB':>9} {'ours GB':>8}")
    for name, (width, words, active) in BANDS.items():
        ours = measure("auto", options.tokens, width, words, active)
        # All tokens by all words of the last band do not fit; a quarter of the tokens does.
        share = 4 if words > 100_000 else 1
        plain = measure("reference", options.tokens // share, width, words, active)
        plain = {key: value * share for key, value in plain.items()}
        result["bands"][name] = {"plain": plain, "ours": ours}
        print(
            f"{name:8} {plain['ms']:9.2f} {ours['ms']:9.2f} {plain['ms'] / ours['ms']:6.1f} "
            f"{plain['peak_gb']:9.2f} {ours['peak_gb']:8.2f}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
