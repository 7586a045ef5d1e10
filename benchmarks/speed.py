"""Measure the speed of training steps, and of single layers next to baselines.

    python benchmarks/speed.py [--only steps loss ...] [--json FILE]

Measures full training steps of several presets, and the output layers, the input layer and the
optimizer separately. Baselines are the published adaptive layers (rewritten in their style),
`nn.AdaptiveLogSoftmaxWithLoss`, `torch.optim.SGD` and a full softmax in compiled chunks. On a GPU,
layers have the sizes of WikiText-103, in bfloat16 with the paper's dropout. On a CPU, they are
smaller and in float32, and only the ratios are meaningful.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import parser_of, random_tokens, real_tokens, seconds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training_step import measure

from zipflm.distributed import processes
from zipflm.model.adaptive_softmax import AdaptiveSoftmax
from zipflm.model.bands import Bands
from zipflm.model.inputs import AdaptiveEmbedding
from zipflm.model.outputs import FullSoftmax
from zipflm.presets import dataset_of, from_name
from zipflm.presets.recipes import apply
from zipflm.settings import override
from zipflm.training.optimizers import NesterovMomentum


class Size(NamedTuple):
    """Problem sizes for a type of device."""

    tokens: int
    bands: Bands
    full_width: int
    rounds: int
    steps: tuple[tuple[str, int], ...]
    """Presets and tokens per update."""


SIZES = {
    "cuda": Size(
        tokens=32_768,
        bands=Bands(267_744, (20_000, 60_000), 1024, 4),
        full_width=1024,
        rounds=10,
        steps=(
            ("wikitext-103/ADP-T", 32_768),
            ("wikitext-103/ADP-T", 65_536),
            ("wikitext-103/SM", 16_384),
            ("wikitext-103/SM-T", 16_384),
            ("wikitext-103/CNN", 16_384),
            ("wikitext-103/ADP-T", 16_384),
            ("wikitext-2/ADP-T", 16_384),
            ("wikitext-2/SM", 16_384),
            ("wikitext-2/CNN", 16_384),
        ),
    ),
    "cpu": Size(
        tokens=1_024,
        bands=Bands(20_000, (2_000, 6_000), 256, 4),
        full_width=256,
        rounds=3,
        steps=(("demo/ADP-T", 1_024), ("demo/SM", 1_024)),
    ),
}

# Shares of WikiText-103's tokens in each band.
SHARES = (0.90, 0.07, 0.03)

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, help="number of measurements; the median is reported")
    parser.add_argument("--presets", nargs="*", help="only measure steps of these presets")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args(arguments)
    size, device = SIZES[options.device], torch.device(options.device)
    rounds = options.rounds or size.rounds
    rows: list[Row] = []
    for part in options.only:
        for row in PARTS[part](size, device, rounds, options.presets):
            rows.append({"part": part} | row)
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if options.json is not None:
        options.json.write_text(
            json.dumps(_metadata(options.device) | {"rows": rows}, indent=1) + "\n"
        )


def _metadata(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {"device": name, "torch": torch.__version__, "commit": git.stdout.strip() or "unknown"}


def steps(
    size: Size, device: torch.device, rounds: int, presets: list[str] | None
) -> Iterator[Row]:
    """Measure full steps: data, forward, backward, update."""
    for name, tokens in size.steps:
        if presets is not None and name not in presets:
            continue
        config = apply("paper", from_name(name), dataset_of(name))
        limits = [f"batches.tokens={tokens}", f"training.tokens_per_update={tokens}"]
        if device.type == "cuda":
            limits += ["training.compile=true", "training.dtype=bfloat16"]
        config = override(config, limits)
        with processes.started(device.type) as process:
            # Character input computes each unique word once, so repetitions matter.
            text = real_tokens if config.input.spells_words else random_tokens
            result = measure(config, process, 2 * rounds, text)
        yield {
            "what": name,
            "tokens": tokens,
            "tokens_per_second": round(result["tokens_per_second"]),
            "ms": round(result["milliseconds_per_update"], 2),
            "gb": round((result["peak_memory_bytes"] or 0) / 1e9, 2),
        }
        torch.compiler.reset()
        _empty_cache(device)


def loss(size: Size, device: torch.device, rounds: int, _: object) -> Iterator[Row]:
    """Measure the tied adaptive softmax with tail dropout, forward and backward."""
    bands = size.bands
    embedding = AdaptiveEmbedding(bands).to(device)
    ours = AdaptiveSoftmax(
        bands, tied_to=embedding, tie="projections", tail_dropout=0.2, reduction="sum"
    ).to(device)
    torchs = nn.AdaptiveLogSoftmaxWithLoss(
        bands.dim, bands.vocab_size, [*bands.cutoffs], div_value=bands.factor
    ).to(device, _dtype(device))
    hidden = torch.randn(size.tokens, bands.dim, device=device).to(_dtype(device))
    hidden.requires_grad_()
    targets = _targets(bands, size.tokens, device)
    sides: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], nn.Module]] = {
        "zipflm": (torch.compile(ours) if device.type == "cuda" else ours, embedding),
        "published style": (lambda h, t: published_loss(ours, h, t), embedding),
        "nn.AdaptiveLogSoftmaxWithLoss": (partial(_without_autocast, torchs), torchs),
    }
    for name, (side, owner) in sides.items():
        total = partial(side, hidden, targets)
        yield {"what": name} | _timed(total, device, rounds, owner, hidden)
    for band in range(1, bands.num_bands):
        alone = torch.randint(*bands.edges[band : band + 2], (size.tokens,), device=device)
        total = partial(sides["zipflm"][0], hidden, alone)
        row = _timed(total, device, rounds, embedding, hidden)
        yield {"what": f"zipflm, all targets in tail {band}"} | row


def embedding(size: Size, device: torch.device, rounds: int, _: object) -> Iterator[Row]:
    """Measure the input layer, forward and backward."""
    layer = AdaptiveEmbedding(size.bands).to(device)
    words = _targets(size.bands, size.tokens, device)
    compiled = torch.compile(layer) if device.type == "cuda" else layer
    yield {"what": "zipflm"} | _timed(lambda: compiled(words).sum(), device, rounds, layer)
    yield {"what": "published style"} | _timed(
        lambda: published_embedding(layer, words).sum(), device, rounds, layer
    )


def full(size: Size, device: torch.device, rounds: int, _: object) -> Iterator[Row]:
    """Measure a single softmax over all words, forward and backward."""
    vocab_size, width = size.bands.vocab_size, size.full_width
    layer = FullSoftmax(vocab_size, width, width).to(device)
    hidden = torch.randn(size.tokens, width, device=device).to(_dtype(device)).requires_grad_()
    targets = torch.randint(vocab_size, (size.tokens,), device=device)
    ours = torch.compile(layer.nll_sum) if device.type == "cuda" else layer.nll_sum
    sides: dict[str, Callable[[], Tensor]] = {
        "zipflm": lambda: ours(hidden, targets),
        "compiled chunks": _compiled_chunks(hidden, layer.weight, targets),
    }
    for name, side in sides.items():
        yield {"what": name} | _timed(side, device, rounds, layer, hidden)


def update(size: Size, device: torch.device, rounds: int, _: object) -> Iterator[Row]:
    """Measure Nesterov momentum on weights of the sizes of `wikitext-103/ADP-T`."""
    bands = size.bands
    shapes = [*zip(bands.sizes, bands.widths, strict=True)] + [(1024, 12_288)] * 16
    params = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    if device.type == "cpu":
        params = params[: bands.num_bands]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = NesterovMomentum(params, lr=1e-3)
    optimizer.grad_scale, optimizer.found_inf = (
        torch.full((), x, device=device) for x in (1.0, 0.0)
    )
    torchs = torch.optim.SGD(params, lr=1e-3, momentum=0.99, nesterov=True, foreach=True)
    weights = sum(param.numel() for param in params)
    for name, side in {"zipflm": optimizer, "SGD(foreach=True)": torchs}.items():
        row = _times(side.step, device, rounds)  # type: ignore[arg-type]
        yield {"what": name, "weights": weights} | row


PARTS: dict[str, Callable[..., Iterator[Row]]] = {
    "steps": steps,
    "loss": loss,
    "embedding": embedding,
    "full": full,
    "update": update,
}


def published_loss(layer: AdaptiveSoftmax, hidden: Tensor, targets: Tensor) -> Tensor:
    """Compute logits of the head for all tokens and of each tail for its own tokens.

    Like the published code, this waits for the device.
    """
    bands = layer.bands
    head_targets = targets.clone()
    total = hidden.new_zeros((), dtype=torch.float32)
    for band in range(1, bands.num_bands):
        inside = (targets >= bands.edges[band]) & (targets < bands.edges[band + 1])
        head_targets[inside] = bands.edges[1] + band - 1
        if inside.any():
            logits = F.linear(layer._project_tail(hidden[inside], band), layer._table(band))
            within = targets[inside] - bands.edges[band]
            total = total + F.cross_entropy(logits.float(), within, reduction="sum")
    logits = F.linear(hidden, torch.cat([layer._table(0), layer.clusters]))
    return total + F.cross_entropy(logits.float(), head_targets, reduction="sum")


def _without_autocast(
    layer: nn.AdaptiveLogSoftmaxWithLoss, hidden: Tensor, targets: Tensor
) -> Tensor:
    """PyTorch's layer does not support autocast, so its weights have low precision."""
    with torch.autocast(hidden.device.type, enabled=False):
        total: Tensor = layer(hidden, targets).loss
    return total


def published_embedding(layer: AdaptiveEmbedding, words: Tensor) -> Tensor:
    """Look up and project the words of each band. Like the published code, this waits for the
    device."""
    hidden = torch.zeros(
        *words.shape, layer.out_dim, device=words.device, dtype=_dtype(words.device)
    )
    for band in range(layer.bands.num_bands):
        table, projection = layer.band_weights(band)
        inside = (words >= layer.bands.edges[band]) & (words < layer.bands.edges[band + 1])
        if inside.any():
            rows = F.embedding(words[inside] - layer.bands.edges[band], table)
            hidden[inside] = F.linear(rows, projection).to(hidden.dtype)
    return hidden


def _compiled_chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> Callable[[], Tensor]:
    def chunk_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")

    compiled = torch.compile(chunk_loss) if hidden.is_cuda else chunk_loss
    num_chunks = max(1, len(hidden) // 2048)

    def total() -> Tensor:
        low = weight.to(hidden.dtype)
        parts = zip(hidden.chunk(num_chunks), targets.chunk(num_chunks), strict=True)
        losses = [checkpoint(compiled, h, low, t, use_reentrant=False) for h, t in parts]
        return torch.stack(losses).sum()

    return total


def _targets(bands: Bands, number: int, device: torch.device) -> Tensor:
    """Return shuffled words, with each band as frequent as in WikiText-103."""
    counts = [round(share * number) for share in SHARES[1:]]
    counts = [number - sum(counts), *counts]
    parts = [
        torch.randint(low, high, (count,))
        for low, high, count in zip(bands.edges, bands.edges[1:], counts, strict=False)
    ]
    return torch.cat(parts)[torch.randperm(number)].to(device)


def _timed(
    total: Callable[[], Tensor],
    device: torch.device,
    rounds: int,
    owner: nn.Module,
    *inputs: Tensor,
) -> Row:
    """Time forward and backward in the precision of the device."""

    def step() -> None:
        owner.zero_grad(set_to_none=True)
        for tensor in inputs:
            tensor.grad = None
        low = _dtype(device) == torch.bfloat16
        with torch.autocast(device.type, torch.bfloat16) if low else nullcontext():
            value = total()
        value.backward()

    return _times(step, device, rounds)


def _times(step: Callable[[], Any], device: torch.device, rounds: int) -> Row:
    for _ in range(3 if device.type == "cuda" else 1):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    taken = [seconds(step, device) for _ in range(rounds)]
    row: Row = {"ms": round(1000 * statistics.median(taken), 3)}
    if device.type == "cuda":
        row["gb"] = round((torch.cuda.max_memory_allocated() - before) / 1e9, 2)
    return row


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
