"""Stop all processes of a run if one of them fails.

If a process failed, the others would keep waiting in a collective operation. A thread in each
process therefore polls the store of the process group. If a process has reported a failure, or one
on the same machine has died, all exit within seconds and one of them prints the reason. torch does
not offer this: `monitored_barrier` is limited to gloo and blames processes that are only waiting,
and a main thread inside a collective cannot be interrupted.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import traceback
import uuid
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from zipflm.messages import describe_os_error, one_line

_PATIENCE = 5.0
"""Seconds to wait for other processes to report an error, or for the store to become reachable."""
_PAUSE = 0.2
"""Seconds between polls of the store."""
_RESUME = "run the command again (zipflm train needs --resume to continue)"


class Watchdog:
    """Watches all processes of a run from one of them."""

    def __init__(self, rank: int, world_size: int, attempt: str) -> None:
        self._rank, self._ranks = rank, range(world_size)
        self._store = _connect(attempt)
        self._rounds = itertools.count()
        self._is_over = threading.Event()
        self._ending = threading.Lock()
        """Acquired by the thread that ends this process, and never released."""
        machine = _machine()
        self._store.set(f"location/{rank}", f"{machine}\n{os.getpid()}")
        locations = self._store.multi_get([f"location/{rank}" for rank in self._ranks])
        self._neighbors: dict[int, int] = {}
        """Process ids on this machine, by rank."""
        for other, location in enumerate(locations):
            where, pid = location.decode().split("\n")
            if where == machine and other != rank:
                self._neighbors[other] = int(pid)
        threading.Thread(target=self._watch, daemon=True).start()

    def agree(self, problem: str) -> str:
        """Return the problem that one or more processes report, or an empty string if none does.

        All processes must call this, and all receive the same result. Ends all processes if they
        report different problems, or if one has a problem and another does not call this in time.
        """
        reported = self._gather(problem)
        problems = {text for text in reported.values() if text}
        if len(problems) > 1 or len(reported) < len(self._ranks):
            self._end(list_problems(reported), status=1)
        return next(iter(problems), "")

    def end(self, error: Exception) -> NoReturn:
        """End all processes because of an error in this one. One process prints the reason."""
        is_input = isinstance(error, ValueError | OSError)
        lost = _lost_connection(error)
        if not is_input and not lost:
            traceback.print_exception(error)
        try:
            reported = self._gather(describe_error(error))
        except RuntimeError:  # the process that hosts the store has exited
            reported = {self._rank: describe_error(error)}
        if lost:
            missing = [str(rank) for rank in self._ranks if rank not in reported]
            lost_to = f"process {', '.join(missing)}" if missing else "another process"
            reason = f"process {self._rank}: lost the connection to {lost_to} ({lost}); {_RESUME}"
        elif len(reported) == len(self._ranks) and len(set(reported.values())) == 1:
            reason = describe_error(error)
        else:
            reason = list_problems(reported)
        self._end(reason, status=2 if is_input else 1)

    def leave(self) -> None:
        """Wait until every process is done, and stop watching them."""
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
        """Collect the problems of all processes by rank (empty string: none). A process with a
        problem waits only `_PATIENCE` seconds, because others can be waiting for it in a
        collective."""
        round_number = next(self._rounds)
        keys = {rank: f"{round_number}/{rank}" for rank in self._ranks}
        self._store.set(keys[self._rank], problem)
        end = time.monotonic() + _PATIENCE if problem else float("inf")
        while not self._store.check(list(keys.values())) and time.monotonic() < end:
            time.sleep(_PAUSE)
        present = {rank: key for rank, key in keys.items() if self._store.check([key])}
        return {rank: self._store.get(key).decode() for rank, key in present.items()}

    def _watch(self) -> None:
        """End this process if another one has failed or died, or the store is lost."""
        while not self._is_over.wait(_PAUSE):
            try:
                if self._store.check(["failed"]):
                    self._ending.acquire()
                    os._exit(int(self._store.get("failed").split()[0]))
                for rank, pid in self._neighbors.items():
                    if not _is_running(pid) and not self._store.check([f"done/{rank}"]):
                        killed = f"process {rank} ended without a message (killed?); {_RESUME}"
                        self._end(killed, status=1)
            except RuntimeError:  # the store is not reachable
                if not self._is_over.wait(_PATIENCE):
                    self._end(f"process {self._rank}: lost the connection to process 0", status=1)
                return

    def _end(self, reason: str, status: int) -> NoReturn:
        """End this process and, through the store, all others. The first to call this prints the
        reason.

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
    """Open a second connection to the store. The connection of the process group can be blocked."""
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
    except OSError:  # not Linux: a dead process is only detected by lost connections
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
    """Return torch's message if the error is a lost connection, and an empty string otherwise."""
    is_lost = isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo/" in str(error)
    )
    return str(error).split("] ")[-1].split("\n")[0] if is_lost else ""


def describe_error(error: BaseException) -> str:
    """Return the error message on one line. Errors other than ValueError and OSError start with
    their type."""
    text = " ".join(
        (describe_os_error(error) if isinstance(error, OSError) else str(error)).split()
    )
    if isinstance(error, ValueError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def list_problems(problems: dict[int, str]) -> str:
    """Return the problems of all processes that have one, by rank."""
    return "; ".join(f"process {rank}: {text}" for rank, text in problems.items() if text)
