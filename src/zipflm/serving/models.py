"""The runs that are served: each loaded once, wholly in memory, under a name of its own."""

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
from zipflm.data.bpe import Codes
from zipflm.data.encoding import TextEncoder
from zipflm.data.vocabulary import SPECIALS
from zipflm.language.engine import Engine
from zipflm.language.model import TrainedModel, load
from zipflm.language.text import TextReader
from zipflm.runs.records import TrainingState
from zipflm.serving.schemas import ModelEntry


@dataclass(frozen=True)
class ServedModel:
    """One run, and what the service says of it."""

    name: str
    lm: TrainedModel
    reader: TextReader
    """For whoever reads requests. Readers remember words and belong to one thread each; `lm.reader`
    is the model thread's."""
    entry: ModelEntry
    """For the list of models."""

    @property
    def engine(self) -> Engine:
        return self.lm.engine

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the checkpoint and the software: equal seeds give equal texts if it is the
        same."""
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
    """The runs by name, in the order given: the first is the default. All get these memories."""
    options = {"device": device, "dtype": dtype, "checkpoint": checkpoint}
    loaded = [load(path, **options, memory=memory) for path in paths]  # type: ignore[arg-type]
    names = _names(paths, loaded)
    return {name: served(name, lm) for name, lm in zip(names, loaded, strict=True)}


def served(name: str, lm: TrainedModel) -> ServedModel:
    """A model that is in memory, from now on independent of any file."""
    _copy_from_disk(lm)
    run = lm.run
    codes = None if run.codes is None else Codes(run.codes.merges)
    encoder = TextEncoder(run.vocabulary, codes, run.splitting, lm.unseen)
    reader = TextReader(encoder, lm.engine.unit, run.config.num_predicted)
    return ServedModel(name, lm, reader, _entry(name, lm))


def _names(paths: Sequence[str], loaded: Sequence[TrainedModel]) -> list[str]:
    """The runs' own names; where two are alike, with the checkpoint's, else their whole paths."""
    plain = [lm.run.folder.path.resolve().name for lm in loaded]
    exact = [f"{name}@{lm.run.checkpoint.name}" for name, lm in zip(plain, loaded, strict=True)]
    counts = Counter(plain) + Counter(exact)
    names = [
        next((name for name in choices if counts[name] == 1), choices[-1])
        for choices in zip(plain, exact, map(str, paths), strict=True)
    ]
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise ValueError(f"{twice[0]}: given twice; name each run once")
    return names


def _copy_from_disk(lm: TrainedModel) -> None:
    """Weights may be mapped from the checkpoint's file. A run that trains on, or is removed, must
    not change the answers or end the process."""
    with torch.no_grad():
        for tensor in (*lm.model.parameters(), *lm.model.buffers()):
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
            "perplexity": _perplexity(lm, path),
            "checkpoint": run.checkpoint.name,
            "block": lm.engine.blocks.block,
            "dtype": lm.engine.dtype_name,
        }
        | _memory(lm),
    )


def _memory(lm: TrainedModel) -> dict[str, Any]:
    """The memories by name; the folder of a store is the server's own business."""
    memories = lm.engine.memories
    return {} if memories is None else {"memory": [Path(name).name for name in memories.names]}


def _bands(lm: TrainedModel) -> list[dict[str, Any]]:
    """Bands of the output layer, from frequent to rare; ranks begin at 1 and leave out specials
    and fillers."""
    edges, number = lm.model.output.edges, lm.vocabulary.num_words
    names = ["head", *(f"tail {tail}" for tail in range(1, len(edges)))]
    bands = []
    for name, (first, end) in zip(names, pairwise(edges), strict=False):
        low = max(first - len(SPECIALS), 0) + 1
        high = min(end - len(SPECIALS), number)
        bands.append({"name": name, "first": low, "last": high, "words": max(high - low + 1, 0)})
    return bands


def _perplexity(lm: TrainedModel, path: Path) -> float | None:
    """On the valid set, measured with these very weights; None where nobody has measured it."""
    if not path.exists():
        return None
    state = lm.run.checkpoint.state()
    valid = state.valid if isinstance(state, TrainingState) else None
    return valid.perplexity if valid else None
