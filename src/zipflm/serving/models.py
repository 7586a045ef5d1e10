"""Loading and naming of the served models."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from zipflm import __version__
from zipflm.data.vocabulary import SPECIALS
from zipflm.language.engine import Engine
from zipflm.language.model import TrainedModel, load
from zipflm.language.text import TextReader
from zipflm.runs.records import TrainingState
from zipflm.serving.schemas import ModelEntry


@dataclass(frozen=True)
class ServedModel:
    """A loaded run with its name and its entry in /v1/models."""

    name: str
    lm: TrainedModel
    entry: ModelEntry

    @property
    def engine(self) -> Engine:
        return self.lm.engine

    @property
    def reader(self) -> TextReader:
        return self.lm.reader

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the checkpoint, the software and the kind of device. As long as it stays the
        same, the same request with the same seed should give the same text."""
        versions = [__version__, torch.__version__, self.engine.device.type]
        text = self.entry.model_dump_json() + " ".join(versions)
        return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:12]


def load_models(
    paths: Sequence[str],
    *,
    device: str | None = None,
    dtype: str = "float32",
    checkpoint: str | None = None,
    memory: Sequence[str] = (),
) -> dict[str, ServedModel]:
    """Load runs and return them by name, in the order of `paths`."""
    options = {"device": device, "dtype": dtype, "checkpoint": checkpoint}
    loaded = [load(path, **options, memory=memory) for path in paths]  # type: ignore[arg-type]
    names = _names(paths, loaded)
    return {name: make_served_model(name, lm) for name, lm in zip(names, loaded, strict=True)}


def make_served_model(name: str, lm: TrainedModel) -> ServedModel:
    """Wrap a loaded model, and copy its weights into memory. Only the stores of its memories, if
    any, are still read from disk."""
    _copy_from_disk(lm)
    return ServedModel(name, lm, _entry(name, lm))


def _names(paths: Sequence[str], loaded: Sequence[TrainedModel]) -> list[str]:
    """Return the names of the folders or Hub repositories, or the paths of runs with the same
    name."""
    names = [
        lm.run.folder.path.resolve().name if Path(path).exists() else Path(path).name
        for path, lm in zip(paths, loaded, strict=True)
    ]
    counts = Counter(names)
    names = [name if counts[name] == 1 else path for name, path in zip(names, paths, strict=True)]
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{name}: given twice; name each run once")
    return names


def _copy_from_disk(lm: TrainedModel) -> None:
    """Copy memory-mapped weights, because the checkpoint could be changed or deleted."""
    with torch.no_grad():
        for tensor in (*lm.model.parameters(), *lm.model.buffers()):
            if tensor.device.type == "cpu":
                tensor.data = tensor.data.clone()


def _entry(name: str, lm: TrainedModel) -> ModelEntry:
    run, vocabulary = lm.run, lm.vocabulary
    path = run.checkpoint.path
    return ModelEntry(
        id=name,
        created=int(path.stat().st_mtime) if path.exists() else 0,
        zipflm={
            "factorization": run.config.factorization(lm.engine.unit),
            "words": vocabulary.num_words,
            "unit": lm.engine.unit,
            "bands": _bands(lm),
            "perplexity": _validation_perplexity(lm),
            "checkpoint": run.checkpoint.name,
            "block": lm.engine.blocks.block,
            "dtype": lm.engine.dtype_name,
        }
        | _memory(lm),
    )


def _memory(lm: TrainedModel) -> dict[str, Any]:
    """Return the names of the memories, without the paths of their folders."""
    memories = lm.engine.memories
    return {} if memories is None else {"memory": [Path(name).name for name in memories.names]}


def _bands(lm: TrainedModel) -> list[dict[str, Any]]:
    """Return the bands as ranges of frequency ranks, without special tokens and padding."""
    num_words, bands = lm.vocabulary.num_words, []
    for band, (first, end) in enumerate(pairwise(lm.model.output.edges)):
        name = f"tail {band}" if band else "head"
        low = max(first - len(SPECIALS), 0) + 1
        high = min(end - len(SPECIALS), num_words)
        bands.append({"name": name, "first": low, "last": high, "words": max(high - low + 1, 0)})
    return bands


def _validation_perplexity(lm: TrainedModel) -> float | None:
    if not lm.run.checkpoint.path.exists():
        return None
    state = lm.run.checkpoint.state()
    valid = state.valid if isinstance(state, TrainingState) else None
    return valid.perplexity if valid else None
