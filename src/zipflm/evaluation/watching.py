"""Who wants to know how far scoring is.

Scoring happens far below the command that a person is waiting for. Whoever has something to show
says so once, around the call, instead of handing a function down through layers that have no use
for it. It holds for the calling thread and ends with the `with` block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, int, int | None], None]
"""Called with what is going on, the tokens just done, and all the tokens there are, if known.

An exception that it raises ends the scoring."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_task: ContextVar[str] = ContextVar("task", default="scoring")


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of all that is scored inside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def named(task: str) -> Iterator[None]:
    """What is scored inside, in the words that a person is shown."""
    token = _task.set(task)
    try:
        yield
    finally:
        _task.reset(token)


def tell(done: int, total: int | None) -> None:
    """So many more tokens are scored, of so many."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(_task.get(), done, total)
