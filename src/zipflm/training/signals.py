"""Handle SIGTERM, SIGHUP and Ctrl-C as requests to stop after the current update."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# It starts on a new line, because the current one can hold a progress bar and ^C.
_MESSAGE = (
    b"\nzipflm: stopping after this update, then saving; "
    b"press Ctrl-C again to quit without saving\n"
)


class StopSignal:
    """Context manager in which a signal stops training after the current update.

    Until `arm` is called, after the first update, signals have their usual effect, because there is
    nothing to save. After that, the first signal sets `is_requested` and prints a message; a second
    one has its usual effect.

    With several processes, all signals only set `is_requested`, from the start: torchrun forwards
    the signals that the processes already received from the terminal, sends SIGTERM when another
    process has failed, and kills processes that do not stop.
    """

    is_requested: bool = False

    def __init__(self, is_single_process: bool = True) -> None:
        self._is_single_process = is_single_process
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if not self._is_single_process:
            self.arm()
        return self

    def arm(self) -> None:
        """Install the handlers. Does nothing in threads other than the main one."""
        is_main = threading.current_thread() is threading.main_thread()
        if not self._previous_handlers and is_main:  # only the main thread can set handlers
            # nohup ignores SIGHUP; keep that.
            self._previous_handlers = {
                number: signal.signal(number, self._request)
                for number in _SIGNALS
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            }

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        _leave_closed_terminal()
        if self._is_single_process:
            self._restore()
            with suppress(OSError):  # stderr is closed; `print` is not reentrant
                os.write(2, _MESSAGE)

    def _restore(self) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def __exit__(self, *error: object) -> None:
        self._restore()


def _leave_closed_terminal() -> None:
    """Replace stdout and stderr with /dev/null if their terminal is closed. Writing to it would
    raise OSError before the run is saved."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
