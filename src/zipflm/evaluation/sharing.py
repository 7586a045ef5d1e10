"""Interface for scoring with several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Share(Protocol):
    """One of the processes that score together. All must make the same calls."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. If one of several processes fails, all raise
        ValueError."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes in place, and return it."""
        ...

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        ...


class _SingleProcess:
    rank = 0
    world_size = 1

    def run_on_all(self, work: Callable[[], T]) -> T:
        return work()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, value: T) -> list[T]:
        return [value]


SINGLE_PROCESS: Share = _SingleProcess()
