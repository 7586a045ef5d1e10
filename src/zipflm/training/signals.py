"""SIGTERM and Ctrl-C as a request to stop, which the training loop grants between two updates.

Under torchrun a process may get the same request twice: from whoever signals all processes, as a
terminal and a queue do, and from torchrun, which passes on what it got. So there a second SIGTERM
asks for nothing new, nor does a second Ctrl-C that comes right behind the first. Whoever has lost
patience is served by torchrun, which kills.
"""

from __future__ import annotations

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
    """A context in which a signal sets `is_requested`, and says so. From then on, and outside the
    context, signals do what they did before, so a second one ends the process.

    A second Ctrl-C that would be Python's own exception ends a program there and then: raised in
    the midst of whatever runs, as in a destructor, an exception may be lost. In an interactive
    session, which holds more than this run, it stays an exception.
    """

    is_requested: bool = False

    def __init__(self, is_silent: bool = False, is_alone: bool = True) -> None:
        """`is_silent` is for all processes but one, which get the same signal."""
        self._is_silent, self._is_alone = is_silent, is_alone
        self._asked = 0.0

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        # Python lets only the main thread set handlers.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._request) for number in _SIGNALS}
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:  # once more, where there are several processes
            if number == signal.SIGINT and time.monotonic() - self._asked > _ECHO:
                _leave(number, frame)
            return
        self.is_requested, self._asked = True, time.monotonic()
        if self._is_alone:
            self._hand_over()
        if not self._is_silent:
            _answer()

    def _hand_over(self) -> None:
        """From here on signals do what they did before, or end the process."""
        self._restore()
        # Ignored, as in what a script starts in the background, it would be no way to leave.
        usual = (signal.default_int_handler, signal.SIG_IGN)
        if self._before.get(signal.SIGINT) in usual and not hasattr(sys, "ps1"):
            signal.signal(signal.SIGINT, _leave)

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


def _answer() -> None:
    # On a terminal a bar may stand on the line, and behind it the ^C.
    _write(f"{_ANSWER}\n", before_on_terminal="\n")


def _leave(number: int, frame: FrameType | None) -> None:
    """Whatever moment a process ends at, what it saved before is whole."""
    # A bar may have hidden the cursor.
    _write("zipflm: interrupted\n", before_on_terminal="\n\x1b[?25h")
    os._exit(128 + number)


def _write(text: str, before_on_terminal: str) -> None:
    """Now, whatever the program is in the midst of: `print` may be what was interrupted, and its
    buffer cannot be entered twice."""
    try:
        descriptor = sys.__stderr__.fileno()  # type: ignore[union-attr]
        if os.isatty(descriptor):
            text = before_on_terminal + text
        os.write(descriptor, text.encode())
    except (OSError, ValueError, AttributeError):  # closed, or there is none
        pass
