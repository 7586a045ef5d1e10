"""Nearest neighbors (kNN-LM, Khandelwal et al., 2020): retrieves the words that followed the most
similar contexts of a text.

Exact search compares many queries with one block of keys at a time and keeps the best k.
On a CPU, a store with a faiss index (IVF-PQ) is by default searched with the index; then the exact
cosines of the candidates are computed.

Shapes: N queries, K neighbors, D model width, S keys of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config.checks import Checked, FractionBelowOne, PositiveInt
from zipflm.memory.mixing import Matches, Temperature, unit_vectors
from zipflm.memory.store import INDEX_FILE, Store

_GROUP = 64
"""Group size for the first stage of top-k."""
_MAX_SHARE_OF_FREE_MEMORY = 0.6
"""Maximum fraction of free GPU memory for keys."""
_PROBES = 32
"""Number of cells of an index to search."""


@dataclass(frozen=True, kw_only=True)
class NeighborSettings(Checked):
    """Settings of nearest neighbors in a store."""

    k: PositiveInt = 1024
    """Number of neighbors to retrieve."""
    weight: FractionBelowOne = 0.25
    """Weight of the neighbors in the mixture."""
    temperature: Temperature = 0.02
    """Temperature of the softmax over cosines."""
    search: Literal["auto", "exact"] = "auto"
    """`exact` compares all keys even if the store has an index."""


class Neighbors:
    """Nearest-neighbor search in a store on a device. Scored texts are not added to the store."""

    def __init__(self, store: Store, settings: NeighborSettings, device: str) -> None:
        if settings.k > len(store):
            raise ValueError(f"k={settings.k}: {store.path} has only {len(store)} keys; lower k")
        self.settings: NeighborSettings = settings
        self.store: Store = store
        self._words = torch.from_numpy(store.words.astype(np.int64)).to(device)
        has_index = INDEX_FILE in store.info.sha256 and settings.search == "auto"
        self._index = None
        if has_index and device == "cpu":
            self._index = require_faiss().read_index(str(store.path / INDEX_FILE))
        self._keys = _on_device(store, device)

    def stream(self) -> Neighbors:
        return self

    def rows(self) -> Neighbors:
        return self

    def document_ends(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        return np.zeros(len(ids), dtype=np.bool_)

    def lookup(self, hidden_ND: Tensor, *text: object) -> Matches:
        cosines_NK, rows_NK = self.search(hidden_ND)
        cosines_NK = cosines_NK.masked_fill(cosines_NK == 0, -torch.inf)  # keys of zeros
        has_match_N = cosines_NK.amax(1) > -torch.inf  # an index can return no candidates
        return Matches(cosines_NK, self._words[rows_NK], has_match_N, rows_NK)

    def search(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines of the nearest keys in descending order, and their rows."""
        queries_ND, k = unit_vectors(hidden_ND), self.settings.k
        if self._index is not None:
            return indexed_search(self._index, self.store.keys, queries_ND, k)
        return exact_search(self._keys, queries_ND, k)

    def join(self, hidden: Sequence[Tensor], words: Sequence[Tensor]) -> None: ...

    def keep(self, kept: Sequence[int], kept_N: Tensor) -> None: ...

    def add(self, hidden_ND: Tensor, words_N: Tensor) -> None: ...

    def clear(self, rows: Sequence[int]) -> None: ...


def exact_search(keys: NDArray[Any] | Tensor, queries_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the cosines [N, K] of the nearest keys in descending order, and their rows."""
    max_elements = _max_elements(queries_ND.device)
    size = max(max_elements // queries_ND.shape[1], k)
    parts = torch.split(queries_ND, max(max_elements // size, 1))
    best = [(part.new_empty(len(part), 0), part.new_empty(len(part), 0).long()) for part in parts]
    for first, block_SD in _blocks(keys, size, queries_ND.device):
        for index, part_ND in enumerate(parts):
            cosines_NK, rows_NK = _top(_cosines(part_ND, block_SD), min(k, len(block_SD)))
            both_NK = torch.cat([best[index][0], cosines_NK], 1)
            both_rows_NK = torch.cat([best[index][1], rows_NK + first], 1)
            cosines_NK, order_NK = both_NK.topk(min(k, both_NK.shape[1]), dim=1)
            best[index] = cosines_NK, both_rows_NK.gather(1, order_NK)
    cosines, rows = zip(*best, strict=True)
    return torch.cat(cosines), torch.cat(rows)


def _max_elements(device: torch.device) -> int:
    """Return the maximum number of cosines or key elements in memory at once."""
    if device.type != "cuda":
        return 1 << 26
    total: int = torch.cuda.get_device_properties(device).total_memory
    return min(1 << 30, total // 64)  # with 4 to 8 bytes per element, at most an eighth


def _cosines(queries_ND: Tensor, keys_SD: Tensor) -> Tensor:
    if not (keys_SD.is_cuda and keys_SD.dtype == torch.float16):
        return queries_ND @ keys_SD.float().T
    # Two half-precision products, accumulated in float32, are as accurate as one in float32 and run
    # on tensor cores.
    high_ND = queries_ND.half()
    low_ND = (queries_ND - high_ND.float()).half()
    cosines_NS = torch.mm(high_ND, keys_SD.T, out_dtype=torch.float32)
    return cosines_NS.add_(torch.mm(low_ND, keys_SD.T, out_dtype=torch.float32))


def _top(cosines_NS: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Compute `topk` in two stages: the k largest lie in the k groups with the largest maxima."""
    rows, width = cosines_NS.shape
    if width % _GROUP or width < 4 * _GROUP * k:
        values_NK, rows_NK = cosines_NS.topk(k, dim=1)
        return values_NK, rows_NK
    groups_NGE = cosines_NS.view(rows, -1, _GROUP)
    chosen_NK1 = groups_NGE.amax(2).topk(k, dim=1).indices.unsqueeze(2)
    candidates = groups_NGE.gather(1, chosen_NK1.expand(-1, -1, _GROUP)).flatten(1)
    best_NK, index_NK = candidates.topk(k, dim=1)
    groups_NK = chosen_NK1.squeeze(2).gather(1, index_NK // _GROUP)
    return best_NK, groups_NK * _GROUP + index_NK % _GROUP


def _blocks(
    keys: NDArray[Any] | Tensor, size: int, device: torch.device
) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of keys with the row of their first key. Files are read one block ahead."""
    if isinstance(keys, Tensor):
        for first in range(0, len(keys), size):
            yield first, keys[first : first + size]
        return

    def read(first: int) -> Tensor:
        block = torch.from_numpy(np.array(keys[first : first + size]))
        return block.pin_memory() if device.type == "cuda" else block

    with ThreadPoolExecutor(1) as reader:
        upcoming = reader.submit(read, 0)
        for first in range(0, len(keys), size):
            block = upcoming.result()
            if first + size < len(keys):
                upcoming = reader.submit(read, first + size)
            yield first, block.to(device, non_blocking=True)


def _on_device(store: Store, device: str) -> NDArray[Any] | Tensor:
    """Return the keys on the GPU if they fit, otherwise the memory-mapped file."""
    if not device.startswith("cuda"):
        return store.keys
    free, _ = torch.cuda.mem_get_info(device)
    if store.keys.nbytes > _MAX_SHARE_OF_FREE_MEMORY * free:
        return store.keys
    kept = torch.empty(store.keys.shape, dtype=getattr(torch, store.plan.dtype), device=device)
    for first, block_SD in _blocks(store.keys, 1 << 20, kept.device):
        kept[first : first + len(block_SD)] = block_SD
    return kept


def indexed_search(
    index: Any, keys: NDArray[Any], queries_ND: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Search with an index and compute the exact cosines of its candidates. If there are fewer than
    k, the rest have a cosine of -inf."""
    queries = queries_ND.cpu().numpy()
    _, rows = index.search(queries, k)
    cosines = np.empty(rows.shape, dtype=np.float32)
    for row, (query, candidates) in enumerate(zip(queries, rows, strict=True)):
        cosines[row] = keys[np.maximum(candidates, 0)].astype(np.float32) @ query
    cosines[rows < 0] = -np.inf
    cosines_NK, order_NK = torch.from_numpy(cosines).sort(1, descending=True)
    return cosines_NK, torch.from_numpy(np.maximum(rows, 0)).gather(1, order_NK)


def build_index(keys: NDArray[Any]) -> Any:
    """Build an IVF-PQ index. Keys are read in blocks."""
    faiss = require_faiss()
    count, dim = keys.shape
    # faiss recommends at least 39 training vectors per centroid.
    cells = int(min(4 * np.sqrt(count), count / 39, 65_536)) or 1
    # Each subquantizer encodes a part of the vector, of at least 4 dimensions.
    num_subquantizers = max(m for m in range(1, dim // 4 + 1) if dim % m == 0) if dim >= 4 else 1
    bits = 8 if count >= 39 * 256 else 4
    quantizer = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(
        quantizer, dim, cells, num_subquantizers, bits, faiss.METRIC_INNER_PRODUCT
    )
    sample = np.random.default_rng(0).choice(count, min(count, 64 * max(cells, 256)), False)
    index.train(keys[np.sort(sample)].astype(np.float32))
    for first in range(0, count, 1 << 18):
        index.add(keys[first : first + (1 << 18)].astype(np.float32))
    index.nprobe = _PROBES
    return index


def recall(index: Any, keys: NDArray[Any], k: int, max_queries: int = 256) -> float:
    """Return the fraction of the k nearest keys that an index finds. Queries are random keys."""
    chosen = np.random.default_rng(1).choice(len(keys), min(max_queries, len(keys)), False)
    queries = unit_vectors(torch.from_numpy(keys[np.sort(chosen)].astype(np.float32)))
    _, exact = exact_search(keys, queries, k)
    _, rows = index.search(queries.numpy(), k)
    shared = [np.isin(a, b).mean() for a, b in zip(exact.numpy(), rows, strict=True)]
    return float(np.mean(shared))


def require_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ValueError(
            "an index needs faiss (pip install faiss-cpu); search=exact works without it"
        ) from None
    return faiss
