"""One or several processes over NCCL or gloo: startup, collective operations, failure handling.

If a process fails, the others would wait in a collective operation. A thread in each process
therefore polls the store of the process group: if a process has failed, or one on this machine has
died, all exit within seconds and one of them prints the reason. torch does not offer this:
`monitored_barrier` is limited to gloo and blames processes that are only waiting, and a main thread
inside a collective cannot be interrupted.

DDP and FSDP are in `parallel`, which is slow to import and not needed for scoring.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from zipflm.evaluation.device import resolve_device
from zipflm.messages import describe_os_error, one_line
from zipflm.storage import LOCK
from zipflm.training import STALL_SECONDS

_PATIENCE = 5.0
"""Seconds to wait for other processes to report the same error."""
_GRACE = 20.0
"""Seconds between SIGTERM and exit; torchrun kills after 30."""
_PAUSE = 0.2
"""Seconds between polls of the store or a folder."""
_SLOW_FOLDER = 60.0
"""Seconds until a network file system shows a new file on other machines."""
_RESUME = "add --resume to continue from the newest checkpoint"

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """Rank and device of this process. It implements `evaluation.sharing.Share`."""

    rank: int
    world_size: int
    device: torch.device
    group: Group | None = field(default=None, compare=False)
    """None for a single process."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    # All processes must make the same calls to these methods.

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
        """Call `work` in every process and return its result.

        Raises ValueError in all processes if it fails in one.
        """
        if self.world_size == 1:
            return work()
        result, problem = None, ""
        try:
            result = work()
        except (ValueError, OSError, RuntimeError) as error:
            problem = described(error)
        problems = self.all_gather(problem)
        if any(problems):
            is_same = len(set(problems)) == 1
            raise ValueError(problem if is_same else _listed(dict(enumerate(problems))))
        return cast(T, result)

    def run_on_first(self, work: Callable[[], object]) -> None:
        """Call `work` in the first process while the others wait.

        Raises ValueError in all processes if it fails.
        """
        self.run_on_all(lambda: work() if self.is_first else None)

    @contextmanager
    def enter_on_first(self, context: AbstractContextManager[object]) -> Iterator[None]:
        """Enter a context, such as a lock, in the first process only."""
        with ExitStack() as stack:
            self.run_on_first(lambda: stack.enter_context(context))
            yield

    def agree(self, problem: str) -> str:
        """See `Group.agree`."""
        return self.group.agree(problem) if self.group is not None else problem

    def require_same(self, values: dict[str, object], remedy: str) -> None:
        """Raise ValueError in every process if the values differ, naming the first difference."""
        gathered = self.all_gather(values)
        for rank, other in enumerate(gathered):
            for name in gathered[0] | other:
                ours, theirs = (str(v.get(name, "missing")) for v in (gathered[0], other))
                if ours != theirs:
                    raise ValueError(
                        f"{name} is {ours} in process 0, but {theirs} in process {rank}; {remedy}"
                    )

    def require_shared(self, folder: Path) -> None:
        """Raise ValueError in every process unless all see the first one's lock in this folder."""
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


def _lock_in(folder: Path) -> str | None:
    try:
        os.listdir(folder)  # makes a network file system refresh
        return (folder / LOCK).read_text(encoding="utf-8")
    except OSError:
        return None


class Group:
    """Stops all processes if one of them fails."""

    def __init__(self, rank: int, world_size: int, attempt: str) -> None:
        self._rank, self._ranks = rank, range(world_size)
        self._store = _connect(attempt)
        self._rounds = itertools.count()
        self._is_over = threading.Event()
        self._ending = threading.Lock()
        """Held by the thread that ends this process, and never released."""
        machine = _machine()
        self._store.set(f"place/{rank}", f"{machine}\n{os.getpid()}")
        locations = self._store.multi_get([f"place/{rank}" for rank in self._ranks])
        self._neighbours: dict[int, int] = {}
        """Process ids on this machine, by rank."""
        for other, location in enumerate(locations):
            where, pid = location.decode().split("\n")
            if where == machine and other != rank:
                self._neighbours[other] = int(pid)
        threading.Thread(target=self._watch, daemon=True).start()

    def agree(self, problem: str) -> str:
        """Return the problem that all processes report, or an empty string.

        Ends all processes if they report different problems, or if one does not call this method.
        """
        found = self._gather(problem)
        problems = {text for text in found.values() if text}
        if len(problems) > 1 or len(found) < len(self._ranks):
            self._end(_listed(found), status=1)
        return next(iter(problems), "")

    def end(self, error: Exception) -> NoReturn:
        """End all processes because of an error in this one. One of them prints the reason."""
        is_input = isinstance(error, ValueError | OSError)
        lost = _lost_connection(error)
        if not is_input and not lost:
            traceback.print_exception(error)
        try:
            found = self._gather(described(error))
        except RuntimeError:  # the process that hosts the store has exited
            found = {self._rank: described(error)}
        if lost:
            missing = [str(rank) for rank in self._ranks if rank not in found]
            lost_to = f"process {', '.join(missing)}" if missing else "another process"
            reason = f"process {self._rank}: lost the connection to {lost_to} ({lost}); {_RESUME}"
        elif len(found) == len(self._ranks) and len(set(found.values())) == 1:
            reason = described(error)
        else:
            reason = _listed(found)
        self._end(reason, status=2 if is_input else 1)

    def leave(self) -> None:
        """Wait until every process is done."""
        keys = [f"done/{rank}" for rank in self._ranks]
        with suppress(RuntimeError):  # the process that hosts the store has left
            self._store.set(keys[self._rank], "")
            while not self._store.check(keys):
                time.sleep(_PAUSE)
        self._is_over.set()
        # The first process can host the store, so it exits last. Destroying a gloo group right
        # after an operation deadlocks: its thread needs the GIL to release the tensors.
        time.sleep((1 if self._rank else 3) * _PAUSE)

    def _gather(self, problem: str) -> dict[int, str]:
        """Collect the problems of all processes by rank. A process with a problem does not wait
        long, because the others can be waiting for it elsewhere."""
        round_number = next(self._rounds)
        keys = {rank: f"{round_number}/{rank}" for rank in self._ranks}
        self._store.set(keys[self._rank], problem)
        end = time.monotonic() + _PATIENCE if problem else float("inf")
        while not self._store.check(list(keys.values())) and time.monotonic() < end:
            time.sleep(_PAUSE)
        present = {rank: key for rank, key in keys.items() if self._store.check([key])}
        return {rank: self._store.get(key).decode() for rank, key in present.items()}

    def _watch(self) -> None:
        """End this process if another one has failed or died."""
        while not self._is_over.wait(_PAUSE):
            try:
                if self._store.check(["failed"]):
                    self._ending.acquire()
                    os._exit(int(self._store.get("failed").split()[0]))
                for rank, pid in self._neighbours.items():
                    if not _is_running(pid) and not self._store.check([f"done/{rank}"]):
                        killed = f"process {rank} ended without a message (killed?); {_RESUME}"
                        self._end(killed, status=1)
            except RuntimeError:  # the store is not reachable
                if not self._is_over.wait(_PATIENCE):
                    self._end(f"process {self._rank}: lost the connection to process 0", status=1)
                return

    def _end(self, reason: str, status: int) -> NoReturn:
        """End this process and, through the store, all others. The first one prints the reason.

        Uses `os._exit`, because torch would wait for threads that never return from a collective.
        """
        self._ending.acquire()
        value = f"{status} {self._rank}"
        try:
            is_first = self._store.compare_set("failed", "", value).decode() == value
        except RuntimeError:  # the store is not reachable
            is_first = True
        sys.stdout.flush()
        if is_first:
            print(f"zipflm: {one_line(reason)}", file=sys.stderr, flush=True)
            time.sleep(5 * _PAUSE)  # the others exit before torchrun kills them
        os._exit(status)


def _connect(attempt: str) -> Any:
    """Open a second connection to the store. The one of the process group can be blocked."""
    # The type stubs of torch lack stores.
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
    )
    return dist.PrefixStore(f"{attempt}/zipflm", store)  # type: ignore[attr-defined]


def _machine() -> str:
    """Return an id of the machine and container in which process ids are valid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot + os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: failures are only detected by lost connections
        return uuid.uuid4().hex


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _lost_connection(error: Exception) -> str:
    """Return the message of torch if the error is a lost connection."""
    is_lost = isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo/" in str(error)
    )
    return str(error).split("] ")[-1].split("\n")[0] if is_lost else ""


def described(error: BaseException) -> str:
    """Return the error message on one line."""
    text = " ".join(
        (describe_os_error(error) if isinstance(error, OSError) else str(error)).split()
    )
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _listed(problems: dict[int, str]) -> str:
    return "; ".join(f"process {rank}: {text}" for rank, text in problems.items() if text)


_group: Group | None = None
"""Shared by nested calls of `started`."""


@contextmanager
def started(device: str | None = None, stall_seconds: float = STALL_SECONDS) -> Iterator[Process]:
    """Join the processes started by `torchrun`, or run as a single process. Calls can be nested.

    `device` is `cpu`, `cuda` or `cuda:N`; by default a GPU if available. All processes end if one
    of them fails, or makes no progress for `stall_seconds` seconds.
    """
    global _group
    chosen = torch.device(resolve_device(device))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and chosen.type == "cuda":
        if chosen.index is not None:
            raise ValueError(f"device={device}: each process uses its own GPU; use cuda")
        chosen = torch.device(resolve_device(f"cuda:{os.environ['LOCAL_RANK']}"))
    if chosen.index is not None and chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world_size == 1:
        yield Process(0, 1, chosen)
        return
    if dist.is_initialized():
        yield Process(dist.get_rank(), world_size, chosen, _group)
        return
    timeout = timedelta(seconds=stall_seconds)
    # The type stubs of torch lack stores.
    store, rank, _ = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    attempt = _rendezvous(store, rank, world_size, stall_seconds)
    _wait_after_sigterm()
    dist.init_process_group(
        # gloo lets hosts exchange data without waiting for their GPUs.
        "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo",
        store=dist.PrefixStore(f"{attempt}/torch", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    _group = group = Group(rank, world_size, attempt)
    try:
        yield Process(rank, world_size, chosen, group)
        group.leave()
    except Exception as error:
        group.end(error)
    finally:
        _group = None
        dist.destroy_process_group()


def _rendezvous(store: Any, rank: int, world_size: int, seconds: float) -> str:
    """Wait for all processes. Return an id of this attempt that all of them share.

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


def _wait_after_sigterm() -> None:
    """Exit with a delay after SIGTERM. torchrun sends it as soon as another process has failed, and
    this one may be about to print the reason."""

    def exit_later(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(_GRACE, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, exit_later)
