"""Compare the speed of a training step on a CPU with one in the style of the published code.

    python benchmarks/published_step.py [--threads 2] [--rounds 20] [overrides]

The model is ADP-T with 20,000 words, width 256 and four layers, trained with the paper's recipe in
float32. The baseline has the same shapes and follows the authors' code: separate queries, keys and
values, all attention weights in memory, PyTorch's dropout, tokens selected by band at run time, and
SGD. The two alternate in one process, so the ratio is meaningful even on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable

import torch
from speed import SIZES, _targets, published_embedding, published_loss
from torch import Tensor, nn
from torch.nn import functional as F

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.distributed.processes import Process
from zipflm.model.decoders.transformer import DecoderLayer, sinusoids
from zipflm.model.language_model import LanguageModel
from zipflm.presets.recipes import resolve
from zipflm.training import optimizers, step
from zipflm.training.step import build_learner

BANDS = SIZES["cpu"].bands
MODEL = [
    *("decoder.dim=256", "decoder.num_layers=4", "decoder.num_heads=4", "decoder.ffn_dim=1024"),
    *("decoder.dropout=0.3", "decoder.attention_dropout=0.1", "decoder.relu_dropout=0.1"),
    *("decoder.positions=sinusoidal", "decoder.activation=relu", "decoder.norm=layer"),
    *("decoder.qk_norm=false", "decoder.bias=true", "decoder.final_norm=false"),
    *(f"{layer}.cutoffs=2000,6000" for layer in ("input", "output")),
    *(f"{layer}.dim=256" for layer in ("input", "output")),
    *("output.tail_dropout=0.2", "training.dtype=float32"),
]


class PublishedStyle(nn.Module):
    """The same model in the style of the published code."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, words_BT: Tensor, targets_BT: Tensor) -> Tensor:
        config, length = self.model.config.decoder, words_BT.shape[1]
        hidden = published_embedding(self.model.input, words_BT) * math.sqrt(config.dim)
        hidden = hidden + sinusoids(length, config.dim)
        hidden = F.dropout(hidden, config.dropout, self.training)
        future = torch.full((length, length), -math.inf).triu(1)
        for layer in self.model.decoder.layers:
            hidden = self._layer(layer, hidden, future)
        hidden_ND = hidden.reshape(-1, config.dim)
        return published_loss(self.model.output, hidden_ND, targets_BT.reshape(-1))

    def _layer(self, layer: DecoderLayer, hidden: Tensor, future: Tensor) -> Tensor:
        config = layer.config
        attended = layer.attention_out(self._attend(layer, layer.attention_norm(hidden), future))
        hidden = hidden + F.dropout(attended, config.dropout, self.training)
        inner = layer.ffn_in(layer.ffn_norm(hidden)).relu()
        fed = layer.ffn_out(F.dropout(inner, config.relu_dropout, self.training))
        return hidden + F.dropout(fed, config.dropout, self.training)

    def _attend(self, layer: DecoderLayer, normed: Tensor, future: Tensor) -> Tensor:
        rows, length, dim = normed.shape
        heads = layer.config.num_heads
        query = layer.query(normed) * (dim // heads) ** -0.5
        query, key, value = (
            x.transpose(0, 1).reshape(length, rows * heads, -1).transpose(0, 1)
            for x in (query, layer.key(normed), layer.value(normed))
        )
        weights = (torch.bmm(query, key.transpose(1, 2)) + future).softmax(-1)
        weights = F.dropout(weights, layer.config.attention_dropout, self.training)
        attended = torch.bmm(weights, value).transpose(0, 1).reshape(length, rows, dim)
        return attended.transpose(0, 1)


def our_step(config: Config, model: LanguageModel) -> Callable[[Tensor, Tensor], object]:
    learner = build_learner(config, model, Process(0, 1, torch.device("cpu")))
    optimizers.set_rates(learner.optimizers, 1e-3)
    return lambda words, targets: step.update(
        learner, [Batch(words, targets, torch.ones_like(words, dtype=torch.bool))]
    )


def published_step(config: Config, model: LanguageModel) -> Callable[[Tensor, Tensor], object]:
    scorer = PublishedStyle(model)
    optimizer = torch.optim.SGD(scorer.parameters(), lr=1e-3, momentum=0.99, nesterov=True)

    def update(words: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        (scorer(words, targets) / targets.numel()).backward()
        nn.utils.clip_grad_norm_(scorer.parameters(), config.training.clip_norm)
        optimizer.step()

    return update


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("overrides", nargs="*", help="e.g. decoder.num_layers=1")
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    config = resolve("wikitext-103/ADP-T", "paper", [*MODEL, *options.overrides], BANDS.vocab_size)
    steps = {
        "zipflm": our_step(config, LanguageModel(config)),
        "published style": published_step(config, LanguageModel(config)),
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}
    shape = options.rows, options.block
    for _ in range(options.rounds + 1):
        words, targets = (_targets(BANDS, math.prod(shape), torch.device("cpu")) for _ in range(2))
        for name, update in steps.items():
            start = time.perf_counter()
            update(words.view(shape), targets.view(shape))
            taken[name].append(time.perf_counter() - start)
    torch.set_num_threads(before)
    fastest = {name: min(times[1:]) for name, times in taken.items()}
    median = {name: statistics.median(times[1:]) for name, times in taken.items()}
    result = {f"{name}, ms": round(1000 * seconds, 1) for name, seconds in fastest.items()}
    for name, times in {"fastest": fastest, "median": median}.items():
        result[f"ratio of the {name}"] = round(times["published style"] / times["zipflm"], 3)
    print(json.dumps({"threads": options.threads, "torch": torch.__version__} | result, indent=1))


if __name__ == "__main__":
    main()
