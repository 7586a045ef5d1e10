"""Background loading: a thread assembles batches while the device is busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from zipflm.data.batches import Batch


def prefetch(
    batches: Iterable[Batch],
    device: torch.device | str,
    *,
    ahead: int = 4,
    find_unique_tokens: bool = False,
) -> Generator[Batch]:
    """Yield batches on a device. A thread assembles up to `ahead` of them in advance.

    `find_unique_tokens` fills in their `unique` field. Closing the generator stops the thread.
    """
    device, remaining = torch.device(device), iter(batches)
    num_unique = 0  # never shrinks: every new size would compile the model again

    def load() -> Batch | None:
        nonlocal num_unique
        batch = next(remaining, None)
        if batch is not None and find_unique_tokens:
            batch = batch.with_unique_tokens(num_unique)
            assert batch.unique is not None
            num_unique = len(batch.unique.ids_U)
        return batch.pin_memory() if batch is not None and device.type == "cuda" else batch

    thread = ThreadPoolExecutor(1, thread_name_prefix="zipflm-loader")
    try:
        waiting = deque(thread.submit(load) for _ in range(ahead))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(load))
            yield batch.to(device, non_blocking=True)
    finally:
        thread.shutdown(cancel_futures=True)
