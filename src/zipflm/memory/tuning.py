"""Tune the weight, temperature and window of memories on a validation set.

The log-likelihood of a mixture is concave in the weight, so the best weight for given settings
follows from two probabilities per token: that of the model and that of the memory. One pass over
the text tries all temperatures, and a second pass all windows of a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ResolvedOptions, ScoringOptions, batches_of, ends_word
from zipflm.evaluation.progress import progress_label
from zipflm.evaluation.protocol import count_words
from zipflm.evaluation.scoring import batch_windows, start_scoring
from zipflm.memory.cache import Cache, CacheSettings
from zipflm.memory.mixing import Ids, MemoryStream, Mixture, target_probs
from zipflm.memory.neighbors import Neighbors, NeighborSettings
from zipflm.memory.specs import CACHE_FILE, Tuned, canonical, open_memories, options_of
from zipflm.memory.store import TUNED_FILE
from zipflm.runs.load import LoadedRun
from zipflm.settings import write_record
from zipflm.units import perplexity

WINDOWS = (100, 200, 500, 1000, 2000, 5000, 10_000)
_FIRST_WINDOW = 2000
"""Window with which the temperatures are tried."""
_TEMPERATURES = {
    Cache: (0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.13),
    Neighbors: (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1),
}


@dataclass(frozen=True)
class Trial:
    """Settings of a memory, with the best weight for them."""

    name: str
    """The spec of the memory, with all settings."""
    settings: CacheSettings | NeighborSettings
    perplexity: float
    """Perplexity per word with this memory and those tuned before it."""

    @property
    def window(self) -> int | None:
        return self.settings.window if isinstance(self.settings, CacheSettings) else None


@dataclass(frozen=True)
class TuningResult:
    """The settings that were tried, and those that were chosen."""

    without: float
    """Perplexity per word of the model alone."""
    chosen: tuple[Trial, ...]
    trials: tuple[Trial, ...]


def best_weights(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each row of p_memory / p_model, return the weight from 0 to 0.999 that maximizes the
    likelihood."""
    low, high, gains = np.zeros(len(ratios)), np.full(len(ratios), 0.999), ratios - 1
    for _ in range(24):
        weights = (low + high) / 2
        is_rising = (gains / (1 + weights[:, None] * gains)).sum(1) > 0
        low, high = np.where(is_rising, weights, low), np.where(is_rising, high, weights)
    return np.round(low, 4)


def tunes_window(spec: str) -> bool:
    """Return whether `tune` chooses the window of a memory: that of a cache without one."""
    is_cache = spec.partition(",")[0].partition(":")[0] == "cache"
    return is_cache and not any(option.startswith("window=") for option in options_of(spec))


def tune(
    run: LoadedRun,
    data: DataFolder,
    specs: Sequence[str] = ("cache",),
    *,
    split: str = "valid",
    options: ScoringOptions | None = None,
) -> TuningResult:
    """Tune memories, each on top of those before it, and save their settings.

    Settings of a cache are saved in the run folder, those of a store in its folder. The window of a
    cache is tuned unless its spec sets it. Specs without a weight or temperature then use the tuned
    ones, even with another window.
    """
    if split == "test":
        raise ValueError("split=test: tuning on test invalidates its perplexity; use valid")
    chosen = (options or ScoringOptions()).resolved(run.config)
    memories = open_memories(specs, run, chosen.device)
    if memories is None:
        raise ValueError("no memory to tune; use cache or the folder of a store")
    names = ["cache" if isinstance(m, Cache) else str(m.store.path) for m in memories.memories]
    for spec, name in zip(specs, names, strict=True):
        if names.count(name) > 1:
            raise ValueError(f"memory={spec}: {name} is given twice")
    for memory in memories.memories:
        if isinstance(memory, Neighbors) and memory.store.plan.text == data.split(split).sha256:
            raise ValueError(f"split={split}: {memory.store.path} was built from this text")
    tuner = _Tuner(run, data, split, chosen)
    for spec, memory in zip(specs, memories.memories, strict=True):
        tuner.choose(memory, WINDOWS if tunes_window(spec) else ())
    return TuningResult(tuner.without, tuple(tuner.chosen), tuple(tuner.trials))


class _Tuner:
    """Tunes memories in sequence, and keeps the nll of every token with those chosen so far."""

    def __init__(
        self, run: LoadedRun, data: DataFolder, split: str, options: ResolvedOptions
    ) -> None:
        self._run, self._data, self._split, self._options = run, data, split, options
        self._batches = batches_of(run, data, split, options, in_order=True)
        self._ids = np.asarray(self._batches.tokens.ids)
        self._words = count_words(ends_word(run.config, data)[self._ids])
        self._nll: NDArray[np.float64] | None = None
        self.without: float = 0.0
        self.chosen: list[Trial] = []
        self.trials: list[Trial] = []

    def choose(self, memory: Cache | Neighbors, windows: Sequence[int]) -> None:
        """Tune a memory on top of those chosen so far. For a cache, also choose among `windows`."""
        if isinstance(memory, Neighbors):
            name, path = str(memory.store.path), memory.store.path / TUNED_FILE
            trials = self._try([memory], name, _TEMPERATURES[Neighbors])
        else:
            name, path = "cache", self._run.folder.path / CACHE_FILE
            first = memory.with_window(_FIRST_WINDOW) if windows else memory
            trials = self._try([first], name, _TEMPERATURES[Cache])
            if windows:
                best, _ = min(trials, key=lambda pair: pair[0].perplexity)
                caches = [memory.with_window(window) for window in windows]
                trials = self._try(caches, name, [best.settings.temperature])
        trial, self._nll = min(trials, key=lambda pair: pair[0].perplexity)
        tuned = Tuned(
            memory=trial.name,
            weights=self._run.weights_hash,
            data=str(self._data.path),
            split=self._split,
            perplexity=trial.perplexity,
            after=tuple(trial.name for trial in self.chosen),
        )
        write_record(path, tuned)
        self.chosen.append(trial)

    def _try(
        self, memories: Sequence[Cache | Neighbors], name: str, temperatures: Sequence[float]
    ) -> list[tuple[Trial, NDArray[np.float64]]]:
        """Try every memory at every temperature in one pass over the text."""
        recorder = _Recorder(memories, temperatures)
        with progress_label(f"tuning {name}"):
            windows = batch_windows(self._batches)
            scores = start_scoring(
                self._run.model,
                self._ids,
                windows,
                device=self._options.device,
                precision=self._options.dtype,
                memory=recorder.set_tokens(self._ids),
                carry_state=self._batches.blocks.break_mode == "stream",
            )()
        if self._nll is None:
            self._nll = scores.nll.astype(np.float64)
            self.without = perplexity(float(self._nll.sum()) / self._words)
        nll, results = self._nll, []
        probs = recorder.probs()
        ratios = np.where(np.isnan(probs), 1.0, probs * np.exp(nll))
        weights = best_weights(ratios)
        tried = [(memory, t) for memory in memories for t in temperatures]
        for (memory, temperature), weight, ratio in zip(tried, weights, ratios, strict=True):
            mixed = nll - np.log1p(float(weight) * (ratio - 1))
            changed = replace(memory.settings, weight=float(weight), temperature=temperature)
            nats = float(mixed.sum()) / self._words
            results.append((Trial(canonical(name, changed), changed, perplexity(nats)), mixed))
        self.trials += [trial for trial, _ in results]
        return results


class _Recorder(MemoryStream):
    """Records the probabilities of memories. Its mixtures are empty: they score the model alone."""

    def __init__(
        self, memories: Sequence[Cache | Neighbors], temperatures: Sequence[float]
    ) -> None:
        super().__init__(memories)
        self._temperatures = temperatures
        self._recorded: list[Tensor] = []

    def lookup(self, hidden_ND: Tensor, words_N: Tensor, positions: Ids) -> Mixture:
        probs = [
            target_probs(lookup, words_N, temperature).where(lookup.has_match_N, torch.nan)
            for lookup in super().lookup(hidden_ND, words_N, positions).lookups
            for temperature in self._temperatures
        ]
        self._recorded.append(torch.stack(probs))
        return Mixture([], [])

    def probs(self) -> NDArray[np.float64]:
        """Return the probabilities per trial and token; NaN where a memory found nothing."""
        return torch.cat(self._recorded, 1).cpu().double().numpy()


def draw_windows(result: TuningResult, out: Path) -> None:
    """Draw perplexity against the window of the cache."""
    from matplotlib.figure import Figure

    points = {trial.window: trial for trial in result.trials if trial.window is not None}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    windows = sorted(points)
    axes.plot(windows, [points[window].perplexity for window in windows], marker="o", label="cache")
    axes.axhline(result.without, color="0.5", linestyle="--", label="model alone")
    axes.set(xscale="log", xlabel="tokens in the cache", ylabel="perplexity per word")
    axes.grid(alpha=0.3)
    axes.legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
