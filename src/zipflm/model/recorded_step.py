"""A decoding step as a CUDA graph.

For a single word per row, launching kernels separately takes longer than running them
(docs/results/decoding.md), so the step is recorded once and replayed. This needs fixed shapes:
attention always runs over the full capacity of the cache, and a mask hides the unused slots.

Shapes: N or B rows, D model width, H heads, C capacity, K head width, T new words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zipflm.model.kv_cache import KeyValueCache
from zipflm.model.language_model import LanguageModel


class RecordedStep:
    """Adds one word to every row of a cache: `step(words_N)` is `model(words_N1, cache)[:, -1]`.

    The result is overwritten by the next step. On a CPU the same computation runs eagerly.
    """

    def __init__(self, model: LanguageModel, cache: KeyValueCache):
        """Between two steps, rows may leave the cache or be refilled. Check `fits` before each
        step."""
        self._model, self._cache = model, cache
        device = cache.keys_LBHCK.device
        self._words_N1 = torch.zeros(cache.rows, 1, dtype=torch.int64, device=device)
        self._past = _FixedPast(cache)
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with torch.cuda.device(device):
                self._graph = self._record()

    @property
    def fits(self) -> bool:
        """True if the graph still works for the cache and most of the graph's rows are in use."""
        is_same = self._cache.keys_LBHCK is self._past.keys_LBHCK
        recorded_rows = len(self._words_N1)
        return is_same and recorded_rows < 2 * self._cache.rows <= 2 * recorded_rows

    @torch.inference_mode()
    def __call__(self, words_N: Tensor) -> Tensor:
        rows = len(words_N)
        self._words_N1[:rows, 0] = words_N
        self._past.position[:rows] = self._cache.position
        if self._graph is None:
            self._hidden_ND = self._run()
        else:
            self._graph.replay()
        self._cache.advance(1)
        return self._hidden_ND[:rows]

    def _run(self) -> Tensor:
        hidden_ND: Tensor = self._model(self._words_N1, self._past)[:, -1]
        return hidden_ND

    @torch.inference_mode()
    def _record(self) -> torch.cuda.CUDAGraph:
        # Warm up first, because libraries allocate on first use. This changes the cache, but the
        # first real step overwrites the changed slots.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._hidden_ND = self._run()
        return graph


class _FixedPast:
    """A `Past` that exposes the full capacity of a cache at every step and masks unused slots."""

    def __init__(self, cache: KeyValueCache):
        self.keys_LBHCK, self.values_LBHCK = cache.keys_LBHCK, cache.values_LBHCK
        device = cache.keys_LBHCK.device
        self.position = torch.zeros(cache.rows, 1, dtype=torch.int64, device=device)
        self.position[:] = cache.position
        self._rows_B1 = torch.arange(cache.rows, device=device).unsqueeze(1)
        self._slots_C = torch.arange(cache.capacity, device=device)

    def visible(self, num_new: int) -> Tensor:
        assert num_new == 1
        return (self._slots_C <= self.position).view(len(self.position), 1, 1, -1)

    def admit(self, hidden_BTD: Tensor) -> None:
        """Does nothing, because shapes are fixed."""

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        rows = len(self.position)
        for buffer, new_BHTK in ((self.keys_LBHCK, key_BHTK), (self.values_LBHCK, value_BHTK)):
            buffer[layer, self._rows_B1, :, self.position] = new_BHTK.transpose(1, 2)
        return self.keys_LBHCK[layer, :rows], self.values_LBHCK[layer, :rows]

    def advance(self, num_new: int) -> None:
        """Does nothing, because `RecordedStep` advances the cache outside the graph."""
