"""Measure memory and speed of `training.recompute` for long blocks.

    python benchmarks/recompute.py [--block 8192] [--tokens 8192 65536] [overrides]

The first rows count the bytes per token that a decoder layer keeps for the backward pass, in
uncompiled code with the precision of the run. The others measure full updates of the large Billion
Word model with blocks of this length: peak memory and tokens per second.
Updates are compiled on a GPU. On a CPU, the memory of updates is not measured; use overrides
to make the model smaller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import torch
from common import parser_of, title
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training_step import measure

from zipflm.config import Config, Recompute, TransformerDecoder
from zipflm.distributed import processes
from zipflm.distributed.processes import Process
from zipflm.model.decoders.transformer import Transformer
from zipflm.model.precision import Precision, autocast
from zipflm.presets import from_name
from zipflm.settings import override
from zipflm.training.setup import is_out_of_memory
from zipflm.training.throughput import reset_peak_memory

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
    reset_peak_memory(process.device)
    try:
        found = measure(config, process, steps)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {"outcome": "out of memory"}
    finally:
        torch.compiler.reset()
        if process.device.type == "cuda":
            torch.cuda.empty_cache()
    peak, rate = found["peak_memory_bytes"] or 0, found["tokens_per_second"]
    return {"peak_gb": round(peak / 1e9, 2), "tokens_per_second": round(rate)}


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


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__, "billion-word/ADP-T/large")
    parser.add_argument("--block", type=int, default=8192)
    parser.add_argument(
        "--tokens", type=int, nargs="*", default=[8192, 65_536], help="tokens per batch"
    )
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=10)
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
    print(title(options.device, options.preset, f"blocks of {options.block}"))
    with processes.started(options.device) as process:
        for row in rows(config, process, options.tokens, options.steps, options.modes):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
