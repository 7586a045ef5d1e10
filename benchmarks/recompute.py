"""Measure memory and speed of `training.recompute` for long blocks.

    python benchmarks/recompute.py [--block 8192] [--tokens 8192 65536] [--json FILE] [overrides]

The first rows count the bytes per token that a decoder layer keeps for the backward pass, in
uncompiled code with the precision of the run. The others measure full updates of the large Billion
Word model with blocks of this length: memory between updates, peak memory and tokens per second.
Updates are compiled on a GPU. On a CPU, the memory of updates is not measured; use overrides
to make the model smaller.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training_step import fake_vocabulary, random_tokens

from zipflm.config import Config, Recompute, TransformerDecoder
from zipflm.distributed import processes
from zipflm.distributed.processes import Process
from zipflm.model.decoders.transformer import Transformer
from zipflm.model.precision import Precision, autocast
from zipflm.presets import from_name
from zipflm.runs.load import untrained_model
from zipflm.runs.records import Position
from zipflm.settings import override
from zipflm.training import optimizers, step, throughput
from zipflm.training.setup import is_out_of_memory
from zipflm.training.step import build_learner
from zipflm.training.stream import Stream, accumulation

MODES: tuple[Recompute, ...] = get_args(Recompute)

Row = dict[str, Any]


class _LiveStorages(TorchDispatchMode):
    """Tracks the storages created by operations, to count those that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)
                self._storages[reference.cdata] = reference, storage.nbytes()
        return result

    @property
    def num_bytes(self) -> int:
        return sum(size for ref, size in self._storages.values() if not ref.expired())


def kept_bytes(
    config: TransformerDecoder,
    mode: Recompute,
    device: torch.device,
    precision: Precision = "float32",
) -> float:
    """Return the bytes per token that one layer keeps until the backward pass."""
    # Take differences, because cast weights and inputs shared by all layers are also kept.
    few, many = 128, 256
    by_layers = []
    for num_layers in (1, 2):
        decoder = Transformer(replace(config, num_layers=num_layers)).to(device)
        decoder.set_recompute(mode)
        kept = [_kept(decoder, tokens, device, precision) for tokens in (few, many)]
        by_layers.append((kept[1] - kept[0]) / (many - few))
    return by_layers[1] - by_layers[0]


def _kept(decoder: Transformer, tokens: int, device: torch.device, precision: Precision) -> int:
    embedded = torch.randn(1, tokens, decoder.config.dim, device=device, requires_grad=True)
    with _LiveStorages() as storages, autocast(precision, device):
        hidden, _ = decoder(embedded)
        del embedded
    kept = storages.num_bytes
    del hidden
    return kept


def updates(config: Config, process: Process, steps: int) -> Row:
    """Measure full updates, or report that memory ran out."""
    device = process.device
    try:
        return _updates(config, process, steps)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    finally:
        torch.compiler.reset()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"outcome": "out of memory"}


def _updates(config: Config, process: Process, steps: int) -> Row:
    device = process.device
    learner = build_learner(config, untrained_model(config, fake_vocabulary(config)), process)
    num_batches = accumulation(config, process)
    tokens = random_tokens(config.vocab_size, config.training.tokens_per_update * (steps + 6))
    stream = Stream(config, tokens, process, Position(), config.batches.block)
    optimizers.set_rates(learner.optimizers, 1e-3)

    def update() -> None:
        step.update(learner, [stream.next() for _ in range(num_batches)])

    try:
        for _ in range(3):  # compiles and creates the optimizers' state
            update()
        rest = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
        _synchronize(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        for _ in range(steps):
            update()
        _synchronize(device)
        seconds = time.perf_counter() - start
    finally:
        stream.close()
    peak = throughput.peak_memory(device) if device.type == "cuda" else None
    return {
        "rest_gb": _gigabytes(rest),
        "peak_gb": _gigabytes(peak),
        "tokens_per_second": round(config.training.tokens_per_update * steps / seconds),
    }


def rows(
    config: Config, process: Process, tokens: list[int], steps: int, modes: list[Recompute]
) -> Iterator[Row]:
    for mode in modes:
        training = config.training
        kept = kept_bytes(config.decoder, mode, process.device, training.dtype)
        yield {"recompute": mode, "kept_bytes_per_token_and_layer": round(kept)}
    for batch_tokens in tokens:
        for mode in modes:
            sizes = [f"batches.tokens={batch_tokens}", f"training.tokens_per_update={batch_tokens}"]
            changed = override(config, [*sizes, f"training.recompute={mode}"])
            yield {"recompute": mode, "tokens": batch_tokens} | updates(changed, process, steps)


def _gigabytes(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / 1e9, 2)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="billion-word/ADP-T/large")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--block", type=int, default=8192)
    parser.add_argument(
        "--tokens", type=int, nargs="*", default=[8192, 65_536], help="tokens per batch"
    )
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("overrides", nargs="*", help="e.g. training.compile=false")
    options = parser.parse_args(arguments)
    config = override(
        from_name(options.preset),
        [
            "batches.break_mode=none",
            f"batches.block={options.block}",
            f"batches.tokens={options.block}",
            f"training.tokens_per_update={options.block}",
            "training.dtype=bfloat16",
            f"training.compile={'true' if options.device == 'cuda' else 'false'}",
            *options.overrides,
        ],
    )
    results: list[Row] = []
    with processes.started(options.device) as process:
        name = torch.cuda.get_device_name() if process.device.type == "cuda" else "cpu"
        print(f"{name}, torch {torch.__version__}, {config.name}, blocks of {options.block}")
        for row in rows(config, process, options.tokens, options.steps, options.modes):
            results.append(row)
            print(json.dumps(row), flush=True)
    if options.json is not None:
        setup = {"device": name, "torch": torch.__version__, "preset": options.preset}
        options.json.write_text(json.dumps(setup | {"rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
