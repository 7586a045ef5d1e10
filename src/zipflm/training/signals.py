"""Handle SIGTERM and Ctrl-C as requests to stop after the current update.

Under torchrun a process can receive the same request twice: from the terminal or the batch system,
which signal all processes, and from torchrun, which forwards the signal it receives. With torchrun,
a second SIGTERM is therefore ignored, and so is a second Ctrl-C right after the first. No message
is printed, because torchrun also sends SIGTERM when another process has failed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ECHO = 5.0
"""A second Ctrl-C within this many seconds is the first one, forwarded by torchrun."""
_MESSAGE = (
    "zipflm: stopping after this update, then saving; press Ctrl-C again to quit without saving"
)


class StopSignal:
    """Context manager in which a signal stops training after the current update.

    Until `arm` is called, there is nothing to save and a signal ends the program. After that, the
    first signal sets `is_requested` and prints a message; a second one ends the program
    immediately. A Python handler would have to wait for a running kernel, so with glibc the
    operating system restores the default action when the first signal arrives.

    With a custom handler or in an interactive session, the previous handler is called instead of
    ending the program.
    """

    is_requested: bool = False

    def __init__(self, is_alone: bool = True) -> None:
        self._is_alone = is_alone
        self._is_armed = False
        self._requested_at = 0.0

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        # Only the main thread can set handlers.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        if self._is_alone:
            self._end_immediately()
        else:
            self.arm()
        return self

    def arm(self) -> None:
        """From now on, let the first signal only request a stop."""
        if self._is_armed:
            return
        self._is_armed = True
        for number in self._before:
            signal.signal(number, self._request)
            if self._is_alone and self._ends_program(number):
                _reset_when_delivered(number)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:  # only with several processes
            if number == signal.SIGINT and time.monotonic() - self._requested_at > _ECHO:
                _exit_now(number, frame)
            return
        self.is_requested, self._requested_at = True, time.monotonic()
        if self._is_alone:
            self._end_immediately()
            _write(f"{_MESSAGE}\n")

    def _end_immediately(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if self._ends_program(number) else handler)

    def _ends_program(self, number: int) -> bool:
        # Background jobs of a script ignore signals; training must still be able to stop.
        usual = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN)
        return self._before[number] in usual and not hasattr(sys, "ps1")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _reset_when_delivered(number: int) -> None:
    """Make the installed handler a one-shot handler (SA_RESETHAND)."""
    try:
        libc = ctypes.CDLL(None)
        install, install_once = libc.signal, libc.sysv_signal
    except (OSError, AttributeError, TypeError):  # another C library
        return
    for function in (install, install_once):
        function.argtypes, function.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    install_once(number, install(number, None))


def _exit_now(number: int, frame: FrameType | None) -> None:
    # Safe at any time, because checkpoints are written atomically.
    _write("zipflm: interrupted\n")
    os._exit(128 + number)


def _write(text: str) -> None:
    """Write to stderr from a signal handler. `print` is not reentrant, so it cannot be used."""
    try:
        descriptor = sys.__stderr__.fileno()  # type: ignore[union-attr]
        if os.isatty(descriptor):
            text = f"\n{text}"  # the line can hold a progress bar and ^C
        os.write(descriptor, text.encode())
    except (OSError, ValueError, AttributeError):  # stderr is closed or missing
        pass
