"""A fast substitute for torchrun, which takes seconds per process to import torch.

Processes are forked from one that has imported torch. As under torchrun, they share a store that
outlives them, and if one of them fails the others get SIGTERM.
"""

import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from training_runs import forked

_GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL, as in torchrun."""
_PAUSE = 0.05


class Ended(NamedTuple):
    """Exit status (negative for a signal) and output of a process."""

    status: int
    stdout: str
    stderr: str


class Together:
    """Running processes."""

    def __init__(self, children, folder):
        self._children, self._folder = children, folder

    def signal(self, rank, number):
        os.kill(self._children[rank].pid, number)

    def stdout(self, rank=0):
        return _text(self._folder, rank, "out")

    def all_run(self):
        return all(child.is_alive() for child in self._children)

    def wait_for(self, condition, seconds=60.0):
        """Wait for a condition while all processes run."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.all_run() and time.monotonic() < end, "a process ended or hangs"
            time.sleep(_PAUSE)

    def wait(self, seconds=100.0):
        """Wait for all processes; kill them after this time, or some time after a failure."""
        end, has_failed = time.monotonic() + seconds, False
        while any(child.is_alive() for child in self._children):
            if not has_failed and any(child.exitcode for child in self._children):
                has_failed, end = True, min(end, time.monotonic() + _GRACE)
                for child in self._children:
                    if child.is_alive():
                        child.terminate()
            if time.monotonic() > end:
                break
            time.sleep(_PAUSE)
        self.kill()
        return [
            Ended(child.exitcode, *(_text(self._folder, rank, name) for name in ("out", "err")))
            for rank, child in enumerate(self._children)
        ]

    def kill(self):
        for child in self._children:
            child.kill()
            child.join()


@contextmanager
def together(folder, count, target, *arguments, store=None):
    """Start processes that call `target(*arguments)`; their output goes to files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    store = store or dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    children = [
        forked(_begin, variables | {"RANK": rank, "LOCAL_RANK": rank}, folder, target, arguments)
        for rank in map(str, range(count))
    ]
    for child in children:
        child.start()
    running = Together(children, folder)
    try:
        yield running
    finally:
        running.kill()


def run_together(folder, count, target, *arguments):
    with together(folder, count, target, *arguments) as running:
        return running.wait()


def _begin(variables, folder, target, arguments):
    os.environ.update(variables)
    torch.set_num_threads(1)
    # As in a new interpreter.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with _path(folder, variables["RANK"], name).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    target(*arguments)


def _path(folder, rank, name):
    return folder / f"{rank}.{name}"


def _text(folder, rank, name):
    path = _path(folder, rank, name)
    return path.read_text() if path.exists() else ""
