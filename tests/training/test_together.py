"""What one process finds wrong, all of them say."""

import multiprocessing
import os
import socket
from contextlib import contextmanager

import pytest
import torch

from zipflm.training.distributed import Process, held_by_first, let_first, raise_together, started

ALONE = Process(0, 1, torch.device("cpu"))


def fail(error):
    raise error


@contextmanager
def noted(events):
    events.append("entered")
    try:
        yield
    finally:
        events.append("left")


def test_a_process_alone_says_what_it_found():
    raise_together(None, ALONE)
    with pytest.raises(ValueError, match="^damaged$"):
        raise_together("damaged", ALONE)
    for error in (ValueError("damaged"), OSError("damaged")):
        with pytest.raises(ValueError, match="^damaged$"):
            let_first(lambda error=error: fail(error), ALONE)
    with pytest.raises(KeyError):  # a fault of ours, not of the input
        let_first(lambda: fail(KeyError("bug")), ALONE)


def test_a_context_is_left_after_an_error_too():
    events: list[str] = []
    with pytest.raises(ValueError, match="inside"), held_by_first(noted(events), ALONE):
        assert events == ["entered"]
        raise ValueError("inside")
    assert events == ["entered", "left"]


def _meet(rank, place, found):
    """One of two processes: what it is told when both, one or the other has a problem."""
    os.environ.update(place, RANK=str(rank), LOCAL_RANK=str(rank))
    told: list[str] = []

    def ask(question):
        try:
            question()
            told.append("nothing")
        except ValueError as error:
            told.append(str(error))

    with started("cpu") as process:
        for problems in ((None, None), ("a", None), (None, "b"), ("a", "b")):
            ask(lambda problems=problems: raise_together(problems[rank], process))
        ask(lambda: let_first(lambda: fail(OSError(f"of {rank}")), process))
        events: list[str] = []
        with held_by_first(noted(events), process):
            told.append(" ".join(events))
    found.put((rank, told))


@pytest.mark.slow
@pytest.mark.multi_process
def test_two_processes_say_the_same():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    children = [context.Process(target=_meet, args=(rank, place, found)) for rank in range(2)]
    for child in children:
        child.start()
    told = dict(found.get(timeout=100) for _ in children)
    for child in children:
        child.join(60)
    same = ["nothing", "a", "b", "a", "of 0"]
    assert told == {0: [*same, "entered"], 1: [*same, ""]}
