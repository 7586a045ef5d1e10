"""How processes that were started together find each other, and nobody of an earlier attempt.

torchrun keeps its store when it starts the processes again after a failure, with all that earlier
ones have left in it: addresses at which nobody listens any more, which torch may read before their
successors replace them. That costs one attempt after the other. Nor can the number of the attempt
tell them apart, since every machine counts its own restarts. So the first process makes up a name
for this attempt, under which everything is kept from then on, and tells it to those that have come.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

_PAUSE = 0.05
"""Seconds between two looks at the store."""


def meet(store: Any, rank: int, world_size: int, seconds: float) -> str:
    """Wait for all processes; a name that they have in common and no earlier attempt had.

    RuntimeError if they have not all come after so many seconds.
    """
    end = time.monotonic() + seconds
    if rank == 0:
        return _host(store, world_size, end)
    # Everybody has a name, so that what was said to a predecessor is not taken for an answer.
    own = uuid.uuid4().hex
    store.set(f"here/{rank}", own)
    _wait(lambda: store.check([f"answer/{own}"]), end, "process 0")
    attempt = str(store.get(f"answer/{own}").decode())
    store.set(f"{attempt}/knows/{rank}", "")
    _wait(lambda: store.check([f"{attempt}/all know"]), end, "other processes")
    return attempt


def _host(store: Any, world_size: int, end: float) -> str:
    attempt, others = uuid.uuid4().hex, range(1, world_size)
    answered: dict[int, str] = {}

    def all_know() -> bool:
        for rank in others:
            if store.check([f"here/{rank}"]):
                name = store.get(f"here/{rank}").decode()
                if answered.get(rank) != name:  # it may be a predecessor's, replaced later
                    store.set(f"answer/{name}", attempt)
                    answered[rank] = name
        return bool(store.check([f"{attempt}/knows/{rank}" for rank in others]))

    _wait(all_know, end, "other processes")
    store.set(f"{attempt}/all know", "")
    return attempt


def _wait(condition: Callable[[], bool], end: float, whom: str) -> None:
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited in vain for {whom} to begin")
        time.sleep(_PAUSE)
