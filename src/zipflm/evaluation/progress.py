"""Progress callbacks for scoring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from zipflm.data.scan import ProgressCallback

_callback: ContextVar[ProgressCallback | None] = ContextVar("callback", default=None)
_label: ContextVar[str] = ContextVar("label", default="scoring")


@contextmanager
def on_progress(callback: ProgressCallback) -> Iterator[None]:
    """Report the progress of all scoring in this block to `callback`."""
    token = _callback.set(callback)
    try:
        yield
    finally:
        _callback.reset(token)


@contextmanager
def progress_label(label: str) -> Iterator[None]:
    """Report progress in this block under `label`."""
    token = _label.set(label)
    try:
        yield
    finally:
        _label.reset(token)


def report_progress(done: int, total: int | None) -> None:
    """Report that `done` more tokens (or bytes or hypotheses) of `total` were processed."""
    callback = _callback.get()
    if callback is not None:
        callback(_label.get(), done, total)
