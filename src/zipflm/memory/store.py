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
from zipflm.config.checks import Checked, PositiveInt
from zipflm.settings import read_record
from zipflm.storage import verify_once

FORMAT = 1
INFO_FILE = "memory.json"
KEYS_FILE = "keys.bin"
VALUES_FILE = "values.bin"
INDEX_FILE = "index.faiss"
TUNED_FILE = "tuned.json"

KeyType = Literal["float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class StorePlan(Checked):
    """Inputs and settings that determine the contents of a store."""

    run: str
    checkpoint: str
    weights: str
    """Hash of the weights of the model."""
    layer: str = "decoder output, unit length"
    """Description of the keys."""
    dim: PositiveInt
    dtype: KeyType
    keys: PositiveInt
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
class StoreInfo:
    """Contents of `memory.json`."""

    format: int
    plan: StorePlan
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the files of keys, tokens and, if there is one, the index."""
    recall: float | None = None
    """Fraction of the nearest keys that the index finds; None without an index."""


class Store:
    """A finished store. Keys and tokens are memory-mapped."""

    def __init__(self, path: Path, info: StoreInfo) -> None:
        self.path, self.info, self.plan = path, info, info.plan
        shape = (self.plan.keys, self.plan.dim)
        self.keys: NDArray[Any] = np.memmap(path / KEYS_FILE, self.plan.dtype, "r", shape=shape)
        self.words: NDArray[Any] = np.memmap(path / VALUES_FILE, np.int32, "r", shape=shape[:1])

    def __len__(self) -> int:
        return self.plan.keys

    @classmethod
    def open(cls, path: str | PathLike[str], weights: str) -> Store:
        """Open a store. Raises ValueError if it is missing, unfinished, damaged or built with other
        weights."""
        path = Path(path)
        if not (path / INFO_FILE).is_file():
            if (path / KEYS_FILE).exists():
                raise ValueError(
                    f"{path}: unfinished; run the same zipflm memory build command again"
                )
            raise ValueError(
                f"memory={path}: not a store (no {INFO_FILE}); build one with zipflm memory "
                "build, or use cache:2000"
            )
        info = read_record(StoreInfo, path / INFO_FILE)
        if info.format != FORMAT:
            raise ValueError(f"{path}: format {info.format} is not supported, only {FORMAT}")
        if info.plan.weights != weights:
            raise ValueError(
                f"{path}: built with other weights ({info.plan.checkpoint} of {info.plan.run}); "
                "build a store for this checkpoint"
            )
        for name in info.sha256:
            try:
                verify_once(path, name, info.sha256)
            except ValueError:
                raise ValueError(
                    f"{path / name}: missing or damaged (does not match {INFO_FILE}); build the "
                    "store again"
                ) from None
        return cls(path, info)

    def context(self, row: int, size: int) -> tuple[list[int], int]:
        """Return up to `size` tokens before the token of a row, and that token."""
        ids: list[int] = self.words[max(row - size, 0) : row].tolist()
        return ids, int(self.words[row])
