"""Measure the time of a training step, split into data, forward, backward and update.

    python benchmarks/training_step.py --preset tiny/ADP-T --device cpu
    python benchmarks/training_step.py --preset wikitext-103/ADP-T --recipe modern --device cuda

Trains on ids that follow Zipf's law, or on real text, which repeats words more often, and prints
JSON. Full steps are timed first, then each part separately, waiting for the device after each part.
The time of data is how long the loop waits for the loader, which runs in a thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zipflm.config import Config
from zipflm.data.corpora import EMBEDDED, corpus_texts
from zipflm.data.token_file import TokenArray
from zipflm.data.vocabulary import Vocabulary
from zipflm.distributed import processes
from zipflm.distributed.processes import Process
from zipflm.presets import dataset_of, from_name
from zipflm.presets.recipes import apply
from zipflm.runs.load import untrained_model
from zipflm.runs.records import Position
from zipflm.settings import override
from zipflm.training import optimizers, step, throughput
from zipflm.training.cuda_graphs import UpdateRunner
from zipflm.training.step import build_learner
from zipflm.training.stream import Stream, accumulation

Text = Callable[[int, int], TokenArray]
"""Returns tokens, given the vocabulary size and the number of tokens."""

PARTS = ("data", "forward", "backward", "update")


def real_tokens(vocab_size: int, num_tokens: int) -> TokenArray:
    """Return the bundled text, repeated, with ids by frequency."""
    with corpus_texts(EMBEDDED, Path()) as texts:
        words = texts["train"][0].read_text(encoding="utf-8").split()
    ranks = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common())}
    ids = np.array([ranks[word] for word in words]) % (vocab_size - 4) + 4
    ids = np.resize(ids, num_tokens)
    return TokenArray.of(np.array_split(ids, max(num_tokens // 25, 1)))


def random_tokens(vocab_size: int, num_tokens: int) -> TokenArray:
    """Return ids that follow Zipf's law, in sentences of 25."""
    random = np.random.default_rng(0)
    ids = np.exp(random.uniform(0, np.log(vocab_size - 4), num_tokens)).astype(np.int64) + 3
    return TokenArray.of(np.array_split(ids, max(num_tokens // 25, 1)))


def fake_vocabulary(config: Config) -> Vocabulary:
    """Return a vocabulary of the right size to build a model."""
    words = [f"w{number}" for number in range(config.vocab_size - 4)]
    counts = [config.vocab_size - number for number in range(config.vocab_size - 4)]
    return Vocabulary(["<s>", "<pad>", "</s>", "<unk>", *words], [0, 0, 0, 0, *counts])


def measure(
    config: Config, process: Process, steps: int, text: Text = random_tokens
) -> dict[str, Any]:
    learner = build_learner(config, untrained_model(config, fake_vocabulary(config)), process)
    num_batches = accumulation(config, process)
    tokens = text(config.vocab_size, config.training.tokens_per_update * (steps + 10))
    stream = Stream(config, tokens, process, Position(), config.batches.block)
    updates = UpdateRunner(learner, config)
    optimizers.set_rates(learner.optimizers, 1e-3)
    for _ in range(5):  # compiles, allocates, fills the loader, records the graph
        updates([stream.next() for _ in range(num_batches)])
    full = _full_steps(learner, updates, stream, num_batches, steps)
    parts = _parts(learner, stream, num_batches, steps)
    stream.close()
    per_update = config.training.tokens_per_update
    return {
        "tokens_per_second": per_update * steps / full["seconds"],
        "milliseconds_per_update": 1000 * full["seconds"] / steps,
        "data_share": full["data"] / full["seconds"],
        "shares": {name: parts[name] / sum(parts.values()) for name in PARTS},
        "compiled": learner.compiled,
        "recorded": updates.is_recorded,
        "peak_memory_bytes": throughput.peak_memory(process.device),
    }


def _full_steps(
    learner: step.Learner, updates: UpdateRunner, stream: Stream, num_batches: int, steps: int
) -> dict[str, float]:
    """Time full steps as in the training loop."""
    results = step.ResultReader()
    _synchronize(learner.process.device)
    start, data = time.perf_counter(), 0.0
    for _ in range(steps):
        before = time.perf_counter()
        batches = [stream.next() for _ in range(num_batches)]
        data += time.perf_counter() - before
        results.send(updates(batches))
    results.drain()
    _synchronize(learner.process.device)
    return {"seconds": time.perf_counter() - start, "data": data}


def _parts(learner: step.Learner, stream: Stream, num_batches: int, steps: int) -> dict[str, float]:
    """Return the seconds in each part, waiting for the device after each."""
    device = learner.process.device
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        _synchronize(device)
        spent[name] += time.perf_counter() - start
        return result

    for _ in range(steps):
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        for _ in range(num_batches):
            batch = timed("data", stream.next)
            nll = timed("forward", lambda batch=batch: step.forward(learner, batch))
            timed("backward", lambda nll=nll: step.backward(learner, nll))
            sums += step.sums_of(learner, batch, nll)
        timed("update", lambda sums=sums: step.apply_gradients(learner, sums))
    return spent


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="tiny/ADP-T")
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--real-text", action="store_true", help="train on the bundled text")
    parser.add_argument("overrides", nargs="*", help="e.g. batches.tokens=16384")
    options = parser.parse_args(arguments)
    config = apply(options.recipe, from_name(options.preset), dataset_of(options.preset))
    config = override(config, options.overrides)
    with processes.started(options.device) as process:
        text = real_tokens if options.real_text else random_tokens
        result = measure(config, process, options.steps, text)
    name = torch.cuda.get_device_name() if process.device.type == "cuda" else "cpu"
    setup = {"preset": options.preset, "recipe": options.recipe, "device": name}
    setup |= {"torch": torch.__version__, "precision": config.training.dtype}
    print(json.dumps(setup | result, indent=1))


if __name__ == "__main__":
    main()
