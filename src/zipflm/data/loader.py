"""Background loading: batches are assembled, pinned and copied while the device is busy.

A thread suffices: assembling is NumPy work that takes a fraction of a step. The order of the
batches is the plan's; this module adds nothing to it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import torch

from zipflm.data.batches import Batch, Batches

_Item = Batch | BaseException | None


class Loader:
    """`Batches` on a device: same length, same `epoch(epoch, start)`."""

    def __init__(
        self,
        batches: Batches,
        device: torch.device | str,
        *,
        ahead: int = 4,
        finds_unique_tokens: bool = False,
    ) -> None:
        """`ahead` batches are kept ready; with `finds_unique_tokens` they have those as well."""
        self.batches: Batches = batches
        self.device: torch.device = torch.device(device)
        self._ahead = ahead
        self._finds_unique_tokens = finds_unique_tokens

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from the `start`-th on, on the device."""
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
        pins = self.device.type == "cuda"
        # Never less than before: a new size is a new shape to a compiled model.
        num_unique = 0
        try:
            for batch in self.batches.epoch(epoch, start):
                if self._finds_unique_tokens:
                    batch = batch.with_unique_tokens(num_unique)
                    assert batch.unique is not None
                    num_unique = len(batch.unique.ids_U)
                if not _put(ready, batch.pin_memory() if pins else batch, stop):
                    return
            _put(ready, None, stop)
        except BaseException as error:  # the consumer raises it
            _put(ready, error, stop)


def _put(ready: queue.Queue[_Item], item: _Item, stop: threading.Event) -> bool:
    """Wait for room, but not once the consumer has left."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
