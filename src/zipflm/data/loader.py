"""Background loading: a thread assembles batches while the device is busy."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import torch

from zipflm.data.batches import Batch, Batches

_Item = Batch | BaseException | None


class Loader:
    """Prefetches `Batches` and moves them to a device, with the same `len()` and `epoch`."""

    def __init__(
        self,
        batches: Batches,
        device: torch.device | str,
        *,
        ahead: int = 4,
        find_unique_tokens: bool = False,
    ) -> None:
        """Prefetch up to `ahead` batches. `find_unique_tokens` fills in their `unique` field."""
        self.batches: Batches = batches
        self.device: torch.device = torch.device(device)
        self._ahead = ahead
        self._find_unique_tokens = find_unique_tokens

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch on the device, starting with batch `start`."""
        ready: queue.Queue[_Item] = queue.Queue(self._ahead)
        stop = threading.Event()
        thread = threading.Thread(
            target=self._fill, args=(epoch, start, ready, stop), name="zipflm-loader", daemon=True
        )
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item.to(self.device, non_blocking=True)
        finally:
            stop.set()
            thread.join()

    def _fill(
        self, epoch: int, start: int, ready: queue.Queue[_Item], stop: threading.Event
    ) -> None:
        should_pin = self.device.type == "cuda"
        num_unique = 0  # never shrinks: a compiled model treats a new size as a new shape
        try:
            for batch in self.batches.epoch(epoch, start):
                if self._find_unique_tokens:
                    batch = batch.with_unique_tokens(num_unique)
                    assert batch.unique is not None
                    num_unique = len(batch.unique.ids_U)
                if not _put(ready, batch.pin_memory() if should_pin else batch, stop):
                    return
            _put(ready, None, stop)
        except BaseException as error:  # the consumer raises it
            _put(ready, error, stop)


def _put(ready: queue.Queue[_Item], item: _Item, stop: threading.Event) -> bool:
    """Wait for space in the queue. Returns False once the consumer has stopped."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
