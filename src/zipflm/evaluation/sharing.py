"""Scoring that several processes share: what one of them needs to know of the others.

`training.distributed.Process` is one such share; this part of the package knows no process groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Share(Protocol):
    """One of several processes that score together; all make the same calls, in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def done_by_all(self, work: Callable[[], T]) -> T:
        """What this process gets by a piece of work; ValueError in all if it fails in one."""
        ...

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        ...

    def all_values(self, value: T) -> list[T]:
        """Everybody's value, in the order of the processes."""
        ...


class _Alone:
    """A process that scores everything."""

    rank = 0
    world_size = 1

    def done_by_all(self, work: Callable[[], T]) -> T:
        return work()

    def add_up(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_values(self, value: T) -> list[T]:
        return [value]


ALONE: Share = _Alone()
