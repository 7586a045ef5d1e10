"""SIGTERM and Ctrl-C as a request to stop, which the training loop grants between two updates.

Under torchrun a process may get the same request twice: from whoever signals all processes, as a
terminal and a queue do, and from torchrun, which passes on what it got. So there a second SIGTERM
asks for nothing new, nor does a second Ctrl-C that comes right behind the first. Whoever has lost
patience is served by torchrun, which kills. Nothing is announced there: torchrun also sends SIGTERM
when another process has failed.
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
"""Seconds within which a second Ctrl-C is the first one, passed on by torchrun."""
_ANSWER = (
    "zipflm: stopping after this update, then saving; Ctrl-C again leaves at once, without what "
    "was not saved"
)


class StopSignal:
    """A context in which a signal stops a training.

    Until `arm` is called there is nothing to save, and a signal ends the program at once. From then
    on the first signal sets `is_requested`, and says so. The second of its kind ends the program,
    whatever it is doing: Python's handlers wait until a kernel returns, so the operating system
    itself restores the default action when the first one arrives (with glibc; elsewhere the
    handler does).

    Where somebody else has set a handler, and in an interactive session, which holds more than
    this run, that handler is called instead of ending the program.
    """

    is_requested: bool = False

    def __init__(self, is_alone: bool = True) -> None:
        self._is_alone = is_alone
        self._is_armed = False
        self._asked = 0.0

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        # Python lets only the main thread set handlers.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        if self._is_alone:
            self._end_at_once()
        else:
            self.arm()
        return self

    def arm(self) -> None:
        """There is something to save from now on."""
        if self._is_armed:
            return
        self._is_armed = True
        for number in self._before:
            signal.signal(number, self._request)
            if self._is_alone and self._ends_program(number):
                _reset_when_delivered(number)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:  # once more, where there are several processes
            if number == signal.SIGINT and time.monotonic() - self._asked > _ECHO:
                _leave(number, frame)
            return
        self.is_requested, self._asked = True, time.monotonic()
        if self._is_alone:
            self._end_at_once()
            _write(f"{_ANSWER}\n")

    def _end_at_once(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if self._ends_program(number) else handler)

    def _ends_program(self, number: int) -> bool:
        """An ignored signal, as in a script's background jobs, would leave no way to stop."""
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
    """Make the handler that is installed a handler for one delivery (SA_RESETHAND)."""
    try:
        libc = ctypes.CDLL(None)
        install, install_once = libc.signal, libc.sysv_signal
    except (OSError, AttributeError, TypeError):  # another C library
        return
    for function in (install, install_once):
        function.argtypes, function.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    install_once(number, install(number, None))


def _leave(number: int, frame: FrameType | None) -> None:
    """Whatever moment a process ends at, what it saved before is whole."""
    _write("zipflm: interrupted\n")
    os._exit(128 + number)


def _write(text: str) -> None:
    """Now, whatever the program is in the midst of: `print` may be what was interrupted, and its
    buffer cannot be entered twice."""
    try:
        descriptor = sys.__stderr__.fileno()  # type: ignore[union-attr]
        if os.isatty(descriptor):
            text = f"\n{text}"  # a bar may stand on the line, and after it the ^C
        os.write(descriptor, text.encode())
    except (OSError, ValueError, AttributeError):  # closed, or there is none
        pass
