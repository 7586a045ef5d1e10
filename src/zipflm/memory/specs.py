"""Open memories from specs: `cache:2000` or the folder of a store, with settings after commas, such
as `cache:2000,weight=0.2`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar

from zipflm.memory.cache import Cache, CacheSettings
from zipflm.memory.mixing import MemoryRows, MemoryStream
from zipflm.memory.neighbors import Neighbors, NeighborSettings
from zipflm.memory.store import TUNED_FILE, Store
from zipflm.runs.load import LoadedRun
from zipflm.settings import override, read_record

_SOURCE_CONTEXT = 8
"""Number of tokens to show before each neighbor."""
CACHE_FILE = "cache.json"
"""Tuned settings of a cache, in the run folder."""

MemoryNames = str | PathLike[str] | Sequence[str | PathLike[str]]
T = TypeVar("T", CacheSettings, NeighborSettings)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Settings tuned on a text for the weights of one checkpoint."""

    memory: str
    """The spec of the memory, with all settings."""
    weights: str
    """Hash of the weights."""
    data: str
    split: str
    perplexity: float
    """Perplexity per word with this memory and those in `after`."""
    after: tuple[str, ...] = ()
    """Memories mixed before this one."""


def memory_names(given: MemoryNames) -> tuple[str, ...]:
    """Return one or more specs or store folders as strings."""
    names = [given] if isinstance(given, str | PathLike) else given
    return tuple(fspath(name) for name in names)


class Memories:
    """The memories of a model, in the order in which they are mixed."""

    def __init__(self, names: Sequence[str], memories: Sequence[Cache | Neighbors]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        """Memory specs with all settings."""
        self.memories: tuple[Cache | Neighbors, ...] = tuple(memories)

    @property
    def has_cache(self) -> bool:
        return any(isinstance(memory, Cache) for memory in self.memories)

    @property
    def largest_window(self) -> int:
        """Window of the largest cache; 0 without a cache."""
        caches = [memory.settings for memory in self.memories if isinstance(memory, Cache)]
        return max((cache.window or sys.maxsize for cache in caches), default=0)

    def sources(
        self, parts: Sequence[float], nearest: Sequence[Sequence[int]]
    ) -> list[tuple[str, float, list[tuple[list[int], int]]]]:
        """Name the contributions to a probability. For a store, add its nearest neighbors: some
        tokens of context, and the token."""
        stores, named = iter(nearest), [("model", parts[0], list[tuple[list[int], int]]())]
        for memory, part in zip(self.memories, parts[1:], strict=True):
            contexts = []
            if isinstance(memory, Neighbors):
                contexts = [memory.store.context(row, _SOURCE_CONTEXT) for row in next(stores)]
            named.append((type(memory).__name__.lower(), part, contexts))
        return named

    def stream(self) -> MemoryStream:
        """Start the lookups for a new text, or for a stream of independent texts."""
        return MemoryStream(self.memories)

    def rows(self, num_words: int) -> MemoryRows:
        """Start the lookups for parallel texts, with a model that predicts `num_words` ids."""
        return MemoryRows(self.memories, num_words)


def open_memories(specs: Sequence[str], run: LoadedRun, device: str) -> Memories | None:
    """Open the memories of these specs, or return None if there are none.

    Raises ValueError if a spec is invalid, or a store is damaged or was built with other weights.
    """
    pairs = [_open(spec, run, device) for spec in specs]
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"memory={twice[0]}: given twice; give each memory once")
    return Memories(*zip(*pairs, strict=True)) if pairs else None


def _open(spec: str, run: LoadedRun, device: str) -> tuple[str, Cache | Neighbors]:
    name = spec.partition(",")[0]
    if name.partition(":")[0] == "cache":
        cache = cache_settings(spec, _tuned(run.folder.path / CACHE_FILE, run))
        return canonical("cache", cache), Cache(cache, run.vocabulary.index.get("="))
    if not name:
        raise ValueError(f"memory={spec!r}: use cache:2000 or the folder of a store")
    store = Store.open(name, run.weights_hash)
    default = NeighborSettings(k=min(NeighborSettings().k, len(store)))
    neighbors = _settings(spec, default, _tuned(store.path / TUNED_FILE, run))
    return canonical(name, neighbors), Neighbors(store, neighbors, device)


def cache_settings(spec: str, tuned: Sequence[str] = ()) -> CacheSettings:
    """Parse the spec of a cache. Raises ValueError for a store."""
    if spec.partition(",")[0].partition(":")[0] != "cache":
        raise ValueError(f"memory={spec}: only a cache is supported here, e.g. cache:2000")
    return _settings(spec, CacheSettings(), tuned)


def _settings(spec: str, default: T, tuned: Sequence[str]) -> T:
    try:
        return override(default, [*tuned, *options_of(spec)])
    except ValueError as error:
        raise ValueError(f"memory={spec}: {error}") from None


def options_of(spec: str) -> list[str]:
    """Return the settings in a spec as `key=value`."""
    name, *options = spec.split(",")
    kind, _, window = name.partition(":")
    return [f"window={window}", *options] if kind == "cache" and window else options


def _tuned(path: Path, run: LoadedRun) -> list[str]:
    """Return the settings tuned for the weights of a run, if any, as `key=value`."""
    if not path.is_file():
        return []
    tuned = read_record(Tuned, path)
    return options_of(tuned.memory) if tuned.weights == run.weights_hash else []


def canonical(name: str, settings: CacheSettings | NeighborSettings) -> str:
    """Return the spec of a memory with all its settings."""
    values = asdict(settings)
    if isinstance(settings, CacheSettings):
        name = f"{name}:{values.pop('window') or 'none'}"
    return ",".join([name, *(f"{key}={value}" for key, value in values.items())])
