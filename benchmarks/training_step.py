"""Measure the time of a training step, split into data, forward, backward and update.

    python benchmarks/training_step.py --preset tiny/ADP-T --device cpu
    python benchmarks/training_step.py --preset wikitext-103/ADP-T --recipe modern --device cuda

Trains on ids that follow Zipf's law, or on real text, which repeats words more often, and prints
JSON. Full steps are timed first, then each part separately, waiting for the device after each part.
The time of data is how long the loop waits for the loader, which runs in a thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
from common import (
    fake_vocabulary,
    parser_of,
    random_tokens,
    real_tokens,
    synchronize,
    title,
)

from zipflm.config import Config
from zipflm.data.token_file import TokenArray
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


def measure(
    config: Config, process: Process, steps: int, text: Text = random_tokens
) -> dict[str, Any]:
    learner = build_learner(config, untrained_model(config, fake_vocabulary(config)), process)
    num_batches = accumulation(config, process)
    tokens = text(config.vocab_size, config.training.tokens_per_update * (steps + 10))
    updates = UpdateRunner(learner, config)
    optimizers.set_rates(learner.optimizers, 1e-3)
    with closing(Stream(config, tokens, process, Position(), config.batches.block)) as stream:
        for _ in range(5):  # compiles, allocates, fills the loader, records the graph
            updates([stream.next() for _ in range(num_batches)])
        full = _full_steps(learner, updates, stream, num_batches, steps)
        parts = _parts(learner, stream, num_batches, steps)
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
    synchronize(learner.process.device)
    start, data = time.perf_counter(), 0.0
    for _ in range(steps):
        before = time.perf_counter()
        batches = [stream.next() for _ in range(num_batches)]
        data += time.perf_counter() - before
        results.send(updates(batches))
    results.drain()
    synchronize(learner.process.device)
    return {"seconds": time.perf_counter() - start, "data": data}


def _parts(learner: step.Learner, stream: Stream, num_batches: int, steps: int) -> dict[str, float]:
    """Return the seconds in each part, waiting for the device after each."""
    device = learner.process.device
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        synchronize(device)
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


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, "tiny/ADP-T")
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--real-text", action="store_true", help="train on the bundled text")
    options = parser.parse_args(arguments)
    config = apply(options.recipe, from_name(options.preset), dataset_of(options.preset))
    config = override(config, options.overrides)
    with processes.started(options.device) as process:
        text = real_tokens if options.real_text else random_tokens
        result = measure(config, process, options.steps, text)
    print(title(options.device, options.preset, options.recipe, config.training.dtype))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
