"""Scoring shared by several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Share(Protocol):
    """One of several processes that score together. All must make the same calls in order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def done_by_all(self, work: Callable[[], T]) -> T:
        """The result of `work()`; ValueError in every process if it fails in one."""
        ...

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        ...

    def all_values(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        ...


class _SingleProcess:
    rank = 0
    world_size = 1

    def done_by_all(self, work: Callable[[], T]) -> T:
        return work()

    def add_up(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_values(self, value: T) -> list[T]:
        return [value]


ALONE: Share = _SingleProcess()
