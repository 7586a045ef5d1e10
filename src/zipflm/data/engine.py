"""Who reads the texts of `zipflm prepare`: one process, several, or the workers of a cluster; with
all words in memory, or within a budget. Whoever it is, the same text gives the same scan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zipflm.config import Splitting
from zipflm.data.cluster import Cluster, connected
from zipflm.data.cluster_scan import ClusterScan
from zipflm.data.items import are_arrays, item_names, scan_items
from zipflm.data.memory import MemoryPlan
from zipflm.data.scan import ChunkScan, Errors, Progress, Rename, Scan, SplitScan, SpooledScan, scan
from zipflm.data.text import CHUNK_BYTES, stored_size


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How texts are read."""

    errors: Errors
    encoding: str
    splitting: Splitting
    ids: bool
    """The words are integers, or the texts arrays of them."""
    names: Sequence[str] | None
    """Of these integers."""


@dataclass(frozen=True)
class Engine:
    """Processes or a cluster, and the memory they may take."""

    processes: int
    budget: MemoryPlan | None = None
    cluster: Cluster | None = None

    def scan(
        self, texts: Sequence[str], spool: Path, how: Reading, progress: Progress
    ) -> SplitScan:
        """Read the texts of a split; `spool` takes what does not stay in memory."""
        rename = item_names(texts, how.names) if how.ids else None
        if how.ids and are_arrays(texts) and (self.cluster or self.budget):
            option = "--engine dask" if self.cluster else "--memory"
            raise ValueError(f"{texts[0]}: arrays are read by one process, all at once; leave out "
                             f"{option}, or give the ids as text")  # fmt: skip
        if self.cluster is not None:
            return self._by_cluster(self.cluster, texts, spool, how, rename, progress)
        return self._by_processes(texts, spool, how, rename, progress)

    def _by_cluster(
        self,
        cluster: Cluster,
        texts: Sequence[str],
        spool: Path,
        how: Reading,
        rename: Rename | None,
        progress: Progress,
    ) -> SplitScan:
        found = ClusterScan(
            cluster,
            texts,
            spool,
            None if self.budget is None else self.budget.counting,
            errors=how.errors,
            encoding=how.encoding,
            splitting=how.splitting,
            names_of_items=how.names,
            rename=rename,
            chunk_bytes=None if self.budget is None else self.budget.chunk_bytes,
            progress=progress,
        )
        found.settle()
        return found

    def _by_processes(
        self,
        texts: Sequence[str],
        spool: Path,
        how: Reading,
        rename: Rename | None,
        progress: Progress,
    ) -> SplitScan:
        budget, size = self.budget, stored_size(texts)
        chunk_bytes = CHUNK_BYTES if budget is None else budget.chunk_bytes
        # What is one chunk has work for one process, and starting others takes seconds.
        is_small = size is not None and size <= chunk_bytes
        processes = 1 if is_small else self.processes
        spooled = None if budget is None else SpooledScan(spool, budget.counting, rename)
        into: ChunkScan = spooled or Scan(rename)
        if how.ids:
            scan_items(texts, spool, into, processes, chunk_bytes, progress)
        else:
            scan(
                texts,
                spool,
                into,
                processes=processes,
                errors=how.errors,
                encoding=how.encoding,
                splitting=how.splitting,
                chunk_bytes=chunk_bytes,
                progress=progress,
            )
        if spooled is not None:
            spooled.settle()
        return into


@contextmanager
def engine(processes: int, memory: int | None, scheduler: str | None) -> Iterator[Engine]:
    """Whoever is to read, for as long as it takes.

    Raises ValueError for too little memory, ConnectionError if there is no such scheduler.
    """
    if processes < 1:
        raise ValueError(f"--processes {processes}: must be at least 1")
    if scheduler is None:
        budget = None if memory is None else MemoryPlan.of(memory, processes)
        yield Engine(processes if budget is None else budget.processes, budget)
        return
    # What workers may take is told to them, not to us: here are the words, and chunks of ids.
    budget = None if memory is None else MemoryPlan.of(memory, 1)
    with connected(scheduler, processes) as cluster:
        yield Engine(processes, budget, cluster)
