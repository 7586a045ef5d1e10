"""Set up a single process, or several with collective operations over NCCL or gloo.

DDP and FSDP are in `training.parallel`, which is slow to import and not needed for scoring.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from zipflm.distributed import STALL_SECONDS
from zipflm.distributed.failures import Watchdog, describe_error, list_problems
from zipflm.storage import LOCK

_GRACE = 20.0
"""Seconds between SIGTERM and exit. torchrun kills processes after 30."""
_PAUSE = 0.2
"""Seconds between polls of the store or a folder."""
_SLOW_FOLDER = 60.0
"""Seconds to wait until a network file system shows a new file of another machine."""

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """Rank and device of this process."""

    rank: int
    world_size: int
    device: torch.device
    watchdog: Watchdog | None = field(default=None, compare=False)
    """None for a single process."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    # All processes must call these methods in the same order.

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Call `work` in every process and return the result of this one.

        With several processes, all of them raise ValueError if `work` raises a ValueError, OSError
        or RuntimeError in any of them. A single process raises the original error.
        """
        if self.world_size == 1:
            return work()
        result, problem = None, ""
        try:
            result = work()
        except (ValueError, OSError, RuntimeError) as error:
            problem = describe_error(error)
        problems = self.all_gather(problem)
        if any(problems):
            is_same = len(set(problems)) == 1
            raise ValueError(problem if is_same else list_problems(dict(enumerate(problems))))
        return cast(T, result)

    def run_on_first(self, work: Callable[[], object]) -> None:
        """Call `work` in the first process while the others wait. Errors are as in `run_on_all`."""
        self.run_on_all(lambda: work() if self.is_first else None)

    @contextmanager
    def enter_on_first(self, context: AbstractContextManager[object]) -> Iterator[None]:
        """Enter a context, such as a lock, in the first process only."""
        with ExitStack() as stack:
            self.run_on_first(lambda: stack.enter_context(context))
            yield

    def agree(self, problem: str) -> str:
        """See `Watchdog.agree`."""
        return self.watchdog.agree(problem) if self.watchdog is not None else problem

    def require_same(self, values: dict[str, object], remedy: str) -> None:
        """Raise ValueError in every process if the values differ. The message names the first
        difference."""
        gathered = self.all_gather(values)
        for rank, other in enumerate(gathered):
            for name in gathered[0] | other:
                ours, theirs = (str(v.get(name, "missing")) for v in (gathered[0], other))
                if ours != theirs:
                    raise ValueError(
                        f"{name} is {ours} in process 0, but {theirs} in process {rank}; {remedy}"
                    )

    def require_shared(self, folder: Path) -> None:
        """Raise ValueError in every process unless all of them see the lock file that the first
        process has created in this folder."""
        expected = self.all_gather(_lock_in(folder))[0]

        def wait_for_lock() -> None:
            end = time.monotonic() + _SLOW_FOLDER
            while _lock_in(folder) != expected:
                if time.monotonic() > end:
                    raise ValueError(
                        f"{folder}: files of process 0 are not visible here; the folder must be on "
                        "a file system that all machines share"
                    )
                time.sleep(_PAUSE)

        self.run_on_all(wait_for_lock)


SINGLE_PROCESS: Process = Process(0, 1, torch.device("cpu"))


def _lock_in(folder: Path) -> str | None:
    try:
        os.listdir(folder)  # refreshes a network file system
        return (folder / LOCK).read_text(encoding="utf-8")
    except OSError:
        return None


def resolve_device(name: str | None) -> str:
    """Return `name`; by default cuda if available, otherwise cpu.

    Raises ValueError if PyTorch cannot use the device on this machine.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name}: choose cpu, cuda, cuda:N or mps") from None
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= count.get(device.type, 0):
        raise ValueError(
            f"device={name}: not available here; use another device, such as cpu"
            + (", or fewer processes" if "LOCAL_RANK" in os.environ else "")
        )
    return name


_watchdog: Watchdog | None = None
"""Shared by nested calls of `started`."""


@contextmanager
def started(device: str | None = None, stall_seconds: float = STALL_SECONDS) -> Iterator[Process]:
    """Join the processes started by `torchrun`, or run as a single process. Calls can be nested.

    `device` is `cpu`, `mps`, `cuda` or, with a single process, `cuda:N`. The default is a CUDA GPU
    if available. With several processes, all end if one of them fails or makes no progress for
    `stall_seconds` seconds.
    """
    global _watchdog
    chosen = torch.device(resolve_device(device))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and chosen.type == "cuda":
        if chosen.index is not None:
            raise ValueError(f"device={device}: each process uses its own GPU; use cuda")
        if "LOCAL_RANK" not in os.environ:
            raise ValueError("LOCAL_RANK: not set; start several processes with torchrun")
        chosen = torch.device(resolve_device(f"cuda:{os.environ['LOCAL_RANK']}"))
    if chosen.index is not None and chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world_size == 1:
        yield Process(0, 1, chosen)
        return
    if dist.is_initialized():
        yield Process(dist.get_rank(), world_size, chosen, _watchdog)
        return
    timeout = timedelta(seconds=stall_seconds)
    # The type stubs of torch lack stores.
    store, rank, _ = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    attempt = _rendezvous(store, rank, world_size, stall_seconds)
    _delay_exit_on_sigterm()
    dist.init_process_group(
        # With gloo for CPU tensors, processes exchange data without waiting for their GPUs.
        "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo",
        store=dist.PrefixStore(f"{attempt}/torch", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    _watchdog = watchdog = Watchdog(rank, world_size, attempt)
    try:
        yield Process(rank, world_size, chosen, watchdog)
        watchdog.leave()
    except Exception as error:
        watchdog.end(error)
    finally:
        _watchdog = None
        dist.destroy_process_group()


def _rendezvous(store: Any, rank: int, world_size: int, seconds: float) -> str:
    """Wait for all processes. Return an id of this attempt, which is the same in all of them.

    When torchrun restarts processes, its store still has the keys of earlier attempts. The number
    of restarts does not identify an attempt, because every machine has its own count.
    """
    attempt, end = uuid.uuid4().hex, time.monotonic() + seconds
    if rank > 0:
        store.set(f"here/{rank}", attempt)
        try:
            attempt = str(store.get(f"answer/{attempt}").decode())
        except RuntimeError:
            raise TimeoutError(f"process 0 did not start within {seconds:.0f} s") from None
        store.set(f"{attempt}/knows/{rank}", "")
        try:
            store.get(f"{attempt}/all")
        except RuntimeError:  # the first process prints which are missing
            sys.exit(1)
        return attempt
    missing = set(range(1, world_size))
    while missing:
        if time.monotonic() > end:
            names = ", ".join(map(str, sorted(missing)))
            raise TimeoutError(f"process {names} did not start within {seconds:.0f} s")
        for other in sorted(missing):
            # This can be the key of an earlier attempt, which the new process will replace.
            if store.check([f"here/{other}"]):
                store.set(f"answer/{store.get(f'here/{other}').decode()}", attempt)
            if store.check([f"{attempt}/knows/{other}"]):
                missing.remove(other)
        time.sleep(_PAUSE)
    store.set(f"{attempt}/all", "")
    return attempt


def _delay_exit_on_sigterm() -> None:
    """Make SIGTERM end this process only after a delay. torchrun sends the signal as soon as
    another process has failed, and this one may be about to print the reason."""

    def exit_later(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(_GRACE, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, exit_later)
