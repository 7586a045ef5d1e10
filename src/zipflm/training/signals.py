"""SIGTERM and SIGINT as a request to stop, which the training loop grants between two updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """A context in which a signal sets `is_requested`. From then on, and outside the context,
    signals do what they did before, so a second one ends the process."""

    is_requested = False

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        # Python lets only the main thread set handlers.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._request) for number in _SIGNALS}
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
