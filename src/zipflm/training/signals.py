"""SIGTERM and SIGINT as a wish to stop, which the loop fulfils between two updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """While it is open, the first signal sets `is_requested`; a second one ends the process."""

    is_requested = False

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        # Python allows handlers in the main thread only; elsewhere there is nobody to signal.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        signal.signal(number, self._before[number])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
