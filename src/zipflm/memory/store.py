"""Stores on disk: every token of a text with the hidden vector that predicted it.

`memory.json` is written last, so a folder without it is unfinished. `keys.bin` [N, D] and
`values.bin` [N] are memory-mapped; `index.faiss` is optional. Tokens with a key of zeros are never
retrieved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Blocks
from zipflm.config.checks import Checked, Positive
from zipflm.settings import read_record
from zipflm.storage import verify_once

FORMAT = 1
FACTS_FILE = "memory.json"
KEYS_FILE = "keys.bin"
VALUES_FILE = "values.bin"
INDEX_FILE = "index.faiss"
TUNED_FILE = "tuned.json"

KeyType = Literal["float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class Plan(Checked):
    """Inputs and settings that determine the contents of a store."""

    run: str
    checkpoint: str
    weights: str
    """Hash of the weights of the model."""
    layer: str = "decoder output, unit length"
    dim: Positive
    dtype: KeyType
    keys: Positive
    """Number of keys, for the first tokens of the split."""
    data: str
    split: str
    text: str
    """SHA-256 of the token file of the split."""
    vocabulary: str
    """Hash of the vocabulary."""
    blocks: Blocks
    """Blocks into which the text was cut."""
    batch_tokens: int
    compute_dtype: str


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """Contents of `memory.json`."""

    format: int
    plan: Plan
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the other files."""
    recall: float | None = None
    """Fraction of the nearest keys that the index finds; null without an index."""


class Store:
    """A finished store. Keys and words are memory-mapped."""

    def __init__(self, path: Path, facts: StoreFacts) -> None:
        self.path, self.facts, self.plan = path, facts, facts.plan
        shape = (self.plan.keys, self.plan.dim)
        self.keys: NDArray[Any] = _mapped(path / KEYS_FILE, np.dtype(self.plan.dtype), shape)
        self.words: NDArray[Any] = _mapped(path / VALUES_FILE, np.dtype(np.int32), shape[:1])

    def __len__(self) -> int:
        return self.plan.keys

    @classmethod
    def open(cls, path: str | PathLike[str], weights: str) -> Store:
        """Open a store. Raises ValueError if it is damaged or was built with other weights."""
        path = Path(path)
        if not (path / FACTS_FILE).is_file():
            if (path / KEYS_FILE).exists():
                raise ValueError(f"{path}: unfinished; run the same zipflm memory build again")
            raise ValueError(
                f"memory={path}: not a store (no {FACTS_FILE}); build one with zipflm memory "
                "build, or use cache:2000"
            )
        facts = read_record(StoreFacts, path / FACTS_FILE)
        if facts.format != FORMAT:
            raise ValueError(f"{path}: format {facts.format} is not supported, only {FORMAT}")
        if facts.plan.weights != weights:
            raise ValueError(
                f"{path}: built with other weights ({facts.plan.checkpoint} of {facts.plan.run}); "
                "build a store for this checkpoint"
            )
        store = cls(path, facts)
        for name in facts.sha256:
            try:
                verify_once(path, name, facts.sha256)
            except ValueError:
                raise ValueError(
                    f"{path / name}: missing or damaged (does not match {FACTS_FILE}); build the "
                    "store again"
                ) from None
        return store

    def context(self, row: int, size: int) -> tuple[list[int], int]:
        """Return up to `size` tokens before the token of a row, and that token."""
        ids: list[int] = self.words[max(row - size, 0) : row].tolist()
        return ids, int(self.words[row])


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    expected = dtype.itemsize * int(np.prod(shape))
    found = path.stat().st_size if path.is_file() else 0
    if found != expected:
        raise ValueError(
            f"{path}: {found} bytes, but {FACTS_FILE} says {expected}: truncated or damaged; "
            "build the store again"
        )
    return np.memmap(path, dtype, "r", shape=shape)
