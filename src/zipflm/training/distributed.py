"""One process or many, over NCCL or gloo: who they are, and what they tell each other.

How they share a model is in `parallel`, because torch takes as long to import its ways of doing
that as for most of the rest of it, and whoever scores a text needs none of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from zipflm.evaluation.device import usable_device
from zipflm.training.meeting import meet
from zipflm.training.team import Team, described
from zipflm.training.whereabouts import LIMIT, LONG, NO_LIMIT, Stage
from zipflm.troubles import in_words

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """This process among all of them, and its device."""

    rank: int
    world_size: int
    device: torch.device
    team: Team | None = field(default=None, compare=False)
    """All of them, to agree with; None for a process alone."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def note(self, stage: Stage, update: int = -1) -> None:
        """This process is about to do that; after how many updates, in a run."""
        if self.team is not None:
            self.team.note(stage, update)

    def count(self) -> None:
        """One more batch of what was noted last is done."""
        if self.team is not None:
            self.team.count()

    # As a share in scoring (`evaluation.sharing`).

    def all_values(self, value: T) -> list[T]:
        return all_values(value, self)

    def add_up(self, tensor: Tensor) -> Tensor:
        return add_up(tensor, self)

    def done_by_all(self, work: Callable[[], T]) -> T:
        return done_by_all(work, self)


_team: Team | None = None
"""Of the `started` that has joined the processes, for those inside it."""


@contextmanager
def started(device: str | None = None, stall_seconds: float = LIMIT) -> Iterator[Process]:
    """Join the processes that `torchrun` started, or be the only one.

    `device` is `cpu`, `cuda` or `cuda:N`; by default a GPU where there is one. Within another
    `started` nothing is joined or left: a second group would find the first one's addresses in
    torchrun's store. An error in one process ends them all (see `team`), and so does one that does
    not come for `stall_seconds` (see `whereabouts`); 0 lets them wait for ever.
    """
    global _team
    if not 0 <= stall_seconds < float("inf"):
        raise ValueError(f"--stall-seconds {stall_seconds}: give 0, for no limit, or more")
    place = torch.device(usable_device(device))
    # torchrun tells a process its place in the environment; nothing else is read from there.
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and place.type == "cuda":
        if place.index is not None:
            raise ValueError(f"--device {device}: each process takes its own GPU; use cuda")
        place = torch.device(usable_device(f"cuda:{os.environ['LOCAL_RANK']}"))
    if place.index is not None and place.type == "cuda":
        torch.cuda.set_device(place)
    if world_size == 1:
        yield Process(0, 1, place)
        return
    if dist.is_initialized():
        yield Process(dist.get_rank(), world_size, place, _team)
        return
    # Long enough for whatever our own limit allows: that one names updates and processes.
    longest = timedelta(seconds=2 * LONG * stall_seconds or NO_LIMIT)
    # torch's annotations leave its stores out.
    store, rank, _ = next(dist.rendezvous("env://", timeout=longest))  # type: ignore[attr-defined]
    attempt = meet(store, rank, world_size, longest.total_seconds())
    dist.init_process_group(
        # Hosts have something to tell each other, too, without waiting for their devices.
        "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
        store=dist.PrefixStore(f"{attempt}/torch", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world_size,
        timeout=longest,
    )
    _team = team = Team(rank, world_size, attempt, stall_seconds)
    try:
        with team.leaving_together():
            yield Process(rank, world_size, place, team)
    finally:
        _team = None
        dist.destroy_process_group()


def add_up(tensor: Tensor, process: Process) -> Tensor:
    """The sum over all processes, in place."""
    if process.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def average_rows(gradient: Tensor, process: Process) -> Tensor:
    """The mean over all processes of a sparse gradient, as DDP makes it of the others."""
    if process.world_size > 1:
        dist.all_reduce(gradient)
        gradient = gradient.coalesce() / process.world_size
    return gradient


def wait_for_all(process: Process) -> None:
    """Return when every process has got here."""
    if process.world_size > 1:
        dist.barrier()


def agree(problem: str, process: Process) -> str:
    """What is wrong with a piece of work that all processes did, each with its own view of it;
    empty if nothing is. Waits for all of them, without any time limit while all are well."""
    return process.team.agree(problem) if process.team is not None else problem


def require_same(name: str, value: int | None, process: Process, remedy: str) -> None:
    """ValueError in every process unless all have the same value, None or 0 or more; waits for
    all of them."""
    if process.world_size == 1:
        return
    own = torch.tensor(-1 if value is None else value, device=process.device)
    gathered = [torch.empty_like(own) for _ in range(process.world_size)]
    dist.all_gather(gathered, own)
    values = [None if number < 0 else number for number in (int(each) for each in gathered)]
    for rank, other in enumerate(values):
        if other != values[0]:
            raise ValueError(
                f"{name} is {values[0]} in process 0, but {other} in process {rank}; {remedy}"
            )


def all_values(value: T, process: Process) -> list[T]:
    """Everybody's value, in the order of the processes; waits for all of them."""
    if process.world_size == 1:
        return [value]
    values: list[Any] = [None] * process.world_size
    dist.all_gather_object(values, value)
    return values


def problem_anywhere(problem: str | None, process: Process) -> str | None:
    """The problem of the first process that has one, in every process; waits for all of them."""
    return next((found for found in all_values(problem, process) if found is not None), None)


def raise_together(problem: str | None, process: Process) -> None:
    """ValueError in every process if any of them has a problem; waits for all of them."""
    found = problem_anywhere(problem, process)
    if found is not None:
        raise ValueError(found)


def done_by_all(work: Callable[[], T], process: Process) -> T:
    """What this process gets by a piece of work that each does for itself, such as opening a
    folder; where that is an error for one of them, it is a ValueError for all of them."""
    if process.world_size == 1:
        return work()
    result, problem = None, ""
    try:
        result = work()
    except (ValueError, OSError, RuntimeError) as error:
        problem = described(error)
    problems = all_values(problem, process)
    if any(problems):
        if len(set(problems)) == 1:
            raise ValueError(problem)
        named = (f"process {rank}: {each}" for rank, each in enumerate(problems) if each)
        raise ValueError("; ".join(named))
    return cast(T, result)


def let_first(work: Callable[[], object], process: Process) -> None:
    """Have the first process do this while the others wait; its ValueError or OSError is a
    ValueError in all of them."""
    problem = None
    if process.is_first:
        try:
            work()
        except (ValueError, OSError) as error:
            problem = in_words(error) if isinstance(error, OSError) else str(error)
    raise_together(problem, process)


@contextmanager
def held_by_first(context: AbstractContextManager[object], process: Process) -> Iterator[None]:
    """A context, such as a lock, that the first process enters for all of them."""
    with ExitStack() as held:
        let_first(lambda: held.enter_context(context), process)
        yield
