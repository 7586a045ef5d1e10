"""torchrun in miniature: the processes of a command, started in a moment and watched over as
torchrun does it.

torchrun itself imports torch in the agent and in every process, which takes seconds each. Here the
processes are forked from one that has imported it. Like torchrun's they find each other through a
store that outlives them, and when one of them fails the others get SIGTERM.
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
"""Seconds between SIGTERM and SIGKILL: torchrun's."""
_PAUSE = 0.05


class Ended(NamedTuple):
    """What became of a process: exit status, negative for a signal, and what it said."""

    status: int
    stdout: str
    stderr: str


class Together:
    """Processes that are running."""

    def __init__(self, children, folder):
        self._children, self._folder = children, folder

    def signal(self, rank, number):
        os.kill(self._children[rank].pid, number)

    def stdout(self, rank=0):
        return _text(self._folder, rank, "out")

    def all_run(self):
        return all(child.is_alive() for child in self._children)

    def wait_for(self, condition, seconds=60.0):
        """Until something is so, while all of them run."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.all_run() and time.monotonic() < end, "they ended or hang"
            time.sleep(_PAUSE)

    def wait(self, seconds=100.0):
        """What became of each; those that outlive this many seconds, or the first failure by
        torchrun's patience, are killed."""
        end, told = time.monotonic() + seconds, False
        while any(child.is_alive() for child in self._children):
            if not told and any(child.exitcode for child in self._children):
                told, end = True, min(end, time.monotonic() + _GRACE)
                self._tell_others()
            if time.monotonic() > end:
                break
            time.sleep(_PAUSE)
        self.kill()
        return [self._end_of(rank) for rank in range(len(self._children))]

    def _end_of(self, rank):
        said = (_text(self._folder, rank, name) for name in ("out", "err"))
        return Ended(self._children[rank].exitcode, *said)

    def kill(self):
        for child in self._children:
            child.kill()
            child.join()

    def _tell_others(self):
        for child in self._children:
            if child.is_alive():
                child.terminate()


@contextmanager
def together(folder, count, target, *arguments, store=None):
    """Processes that call `target(*arguments)`, a function of a module; what they say goes into
    files in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    store = store or dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    children = [
        forked(_begin, place | {"RANK": str(r), "LOCAL_RANK": str(r)}, folder, target, arguments)
        for r in range(count)
    ]
    for child in children:
        child.start()
    running = Together(children, folder)
    try:
        yield running
    finally:
        running.kill()


def run_together(folder, count, target, *arguments):
    """The same, waited for."""
    with together(folder, count, target, *arguments) as running:
        return running.wait()


def _begin(place, folder, target, arguments):
    os.environ.update(place)
    torch.set_num_threads(1)
    # As under torchrun, which starts an interpreter of its own.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with _path(folder, place["RANK"], name).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    target(*arguments)


def _path(folder, rank, name):
    return folder / f"{rank}.{name}"


def _text(folder, rank, name):
    path = _path(folder, rank, name)
    return path.read_text() if path.exists() else ""
