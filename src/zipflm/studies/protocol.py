"""Entries of the report's Protocol section: data, settings and machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from zipflm import __version__
from zipflm.data.folder import DataFolder
from zipflm.distributed.processes import Process
from zipflm.studies.budgets import describe_budget
from zipflm.studies.plan import Plan, Request
from zipflm.training.throughput import device_name


def describe_data(words: DataFolder) -> dict[str, str]:
    """Describe the data, metrics and versions."""
    return {
        "data": f"a vocabulary of {len(words.vocabulary):,} words",
        "folder": str(words.path),
        "vocabulary": words.vocabulary.hash,
        "time": "training only, without compilation, validation and checkpoints",
        "tokens/s": "median of the reports in the log; counts subwords for subword models",
        "zipflm": __version__,
        "torch": torch.__version__,
    }


def describe_request(request: Request, plans: Sequence[Plan]) -> dict[str, str]:
    """Describe the options of a study that were used."""
    entries = {
        "preset": request.preset,
        "recipe": "that of the preset" if request.recipe == "paper" else request.recipe,
        # "seeds" below lists these.
        "overrides": " ".join(o for o in request.overrides if not o.startswith("training.seed=")),
        "held equal": describe_budget(request.equal, plans),
        "tuned": " ".join(request.grid),
        "streaming": "words scored one by one, on a CPU in float32" if request.decoders else "",
    }
    return {name: text for name, text in entries.items() if text}


def describe_training(words: DataFolder, plans: Sequence[Plan], process: Process) -> dict[str, str]:
    """Describe the data, training and devices of a study."""
    configs = [plan.config.training for plan in plans]
    updates = sorted({config.max_updates for config in configs})
    updates_text = " to ".join(
        f"{number:,}" for number in dict.fromkeys(updates[:1] + updates[-1:])
    )
    tokens = _join_distinct(f"{config.tokens_per_update:,}" for config in configs)
    optimizer = _join_distinct(type(config.optimizer).__name__ for config in configs)
    on_cuda = process.device.type == "cuda"
    return describe_data(words) | {
        "training": f"{updates_text} updates of {tokens} tokens each, {optimizer}",
        "seeds": ", ".join(str(seed) for seed in sorted({plan.seed for plan in plans})),
        "devices": f"{process.world_size} x {device_name(process.device)}",
        "threads per process": str(torch.get_num_threads()),
        "memory": "peak of the GPU allocator" if on_cuda else "peak of the process",
    }


def _join_distinct(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))
