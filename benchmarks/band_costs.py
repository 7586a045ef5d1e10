"""Measure the cost constants of `model.band_search` on this device.

    python benchmarks/band_costs.py [--tokens 32768] [--dim 1024] [--words 20000]

Times forward and backward passes of `linear_nll` for heads of several sizes and widths, where every
token is scored, and for tails, a quarter and a sixteenth as wide, where few are. Minimizes the
relative errors of

    head = product * tokens * words * (width + per_logit)
    tail = product * tokens * (tail_product * share * words * (width + per_logit) + per_tail)

and prints `per_logit`, `tail_product` and `per_tail`, in multiply-adds of the head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from common import parser_of, seconds, title

from zipflm.kernels import linear_nll
from zipflm.model.band_search import Costs


class Layer(NamedTuple):
    """A band to time."""

    width: int
    words: int
    share: float
    """Share of the tokens that the band scores; 1 for a head."""

    @property
    def is_head(self) -> bool:
        return self.share == 1


def layers(dim: int, words: int) -> list[Layer]:
    """Return heads, then tails, in about the paper's proportions."""
    heads = [Layer(dim // part, size, 1.0) for part in (1, 2) for size in (words // 2, words)]
    tails = [
        Layer(dim // part, size, share)
        for part in (4, 16)
        for size in (words, 4 * words, 8 * words)
        for share in (0.02, 0.08)
    ]
    return heads + tails


def milliseconds(layer: Layer, tokens: int, device: str, repeats: int) -> float:
    """Return the median time of a forward and backward pass."""
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    hidden = torch.randn(tokens, layer.width, device=device, dtype=dtype).requires_grad_()
    weight = torch.randn(layer.words, layer.width, device=device, dtype=dtype)
    weight = (weight * layer.width**-0.5).requires_grad_()
    targets = torch.randint(layer.words, (tokens,), device=device)
    active = torch.rand(tokens, device=device) < layer.share

    def step() -> None:
        rows = "most" if layer.is_head else "few"
        linear_nll(hidden, weight, targets, active, rows=rows).sum().backward()

    times = [1000 * seconds(step, device) for _ in range(repeats + 2)]
    return sorted(times[2:])[repeats // 2]  # the first two warm up


def fit(measured: dict[Layer, float], tokens: int) -> Costs:
    """Fit the constants to the measured times."""
    heads = {layer: ms for layer, ms in measured.items() if layer.is_head}
    tails = {layer: ms for layer, ms in measured.items() if not layer.is_head}
    product, logit = _least_squares(
        [(tokens * layer.words * layer.width, tokens * layer.words) for layer in heads], heads
    )
    per_logit = max(logit / product, 0.0)
    scored = [tokens * layer.share * layer.words * (layer.width + per_logit) for layer in tails]
    tail, fixed = _least_squares([(work, tokens) for work in scored], tails)
    return Costs(per_logit, tail / product, max(fixed / product, 0.0))


def _least_squares(rows: list[tuple[float, float]], measured: dict[Layer, float]) -> np.ndarray:
    """Minimize relative errors, so that small layers count as much as large ones."""
    matrix = np.array(rows) / np.array(list(measured.values()))[:, None]
    scale = matrix.max(axis=0)
    return np.linalg.lstsq(matrix / scale, np.ones(len(rows)), rcond=None)[0] / scale


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--words", type=int, default=20_000, help="words of the head")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    print(title(options.device, f"{options.tokens:,} tokens"))
    print(f"{'width':>6} {'words':>8} {'share':>6} {'ms':>9}")
    measured = {}
    for layer in layers(options.dim, options.words):
        ms = milliseconds(layer, options.tokens, options.device, options.repeats)
        measured[layer] = ms
        print(f"{layer.width:6} {layer.words:8,} {layer.share:6.2f} {ms:9.3f}", flush=True)
    costs = fit(measured, options.tokens)
    print(
        f"per_logit {costs.per_logit:.3g}, tail_product {costs.tail_product:.3g}, "
        f"per_tail {costs.per_tail:.3g}"
    )


if __name__ == "__main__":
    main()
