"""The command line. Each command is a thin wrapper around one library function.

Heavy imports are inside the commands to keep `--help` fast. A `ValueError` or `OSError` is printed
as one line on stderr, with exit status 2.

Other exit statuses: 1 if a model of `compare` failed or `info --paper` finds a difference, 130
after Ctrl-C, 141 if the output pipe was closed, 143 after SIGTERM (130 in `train` and `compare`
once training has started). A running `serve` exits with 0 after either signal.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import TextIO

# Importing these modules registers their commands.
from zipflm.cli import data as data
from zipflm.cli import evaluate as evaluate
from zipflm.cli import info as info
from zipflm.cli import interop as interop
from zipflm.cli import language as language
from zipflm.cli import memory as memory
from zipflm.cli import serve as serve
from zipflm.cli import train as train
from zipflm.cli.app import CLOSED_PIPE, INTERRUPTED, app, print_error
from zipflm.messages import describe_os_error

_COMMAND_ORDER = (
    *("prepare", "train", "evaluate", "score", "generate", "rescore", "serve"),
    *("compare", "report", "info", "export", "import"),
)
app.registered_commands.sort(
    key=lambda entry: _COMMAND_ORDER.index(entry.name or entry.callback.__name__)  # type: ignore[union-attr]
)


def main() -> None:
    """Run the command line."""
    _set_openmp_waiting()
    _open_missing_streams()
    _configure_output_encoding()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _run()
    except (BrokenPipeError, SystemExit) as exit:
        # typer and rich turn a closed pipe into exit status 1, and flushing here can also fail.
        is_closed = BrokenPipeError in (type(exit), type(exit.__context__))
        if not is_closed and _can_flush(sys.stdout):
            raise
        devnull = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # Python flushes both at exit
            os.dup2(devnull, stream.fileno())
        sys.exit(CLOSED_PIPE)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or exit at once while a module is being imported: NumPy and torch
    can swallow the exception and stay half imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"zipflm: interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run() -> None:
    try:
        app(prog_name="zipflm")
    except (OSError, ValueError) as error:
        print_error(describe_os_error(error) if isinstance(error, OSError) else str(error))
        sys.exit(2)


def _set_openmp_waiting() -> None:
    """Limit how long OpenMP threads spin, unless the user has set a limit.

    On a busy machine, spinning threads can make training 70 times slower. libgomp reads the setting
    when torch is imported.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "0" if _is_machine_busy() else "1000"


def _is_machine_busy() -> bool:
    """Return True if other processes need some of the cores that this process can use."""
    try:
        num_other_cores = (os.cpu_count() or 1) - len(os.sched_getaffinity(0))
        running = []
        for _ in range(5):  # ignore short bursts
            with open("/proc/loadavg") as file:
                num_running = int(file.read().split()[3].split("/")[0])
            running.append(num_running - 1)  # without this process
            time.sleep(0.002)
    except (AttributeError, OSError, ValueError, IndexError):  # not Linux
        return False
    return min(running) > num_other_cores


def _can_flush(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:
        return False
    return True


def _open_missing_streams() -> None:
    """Replace streams that the shell closed (`<&-`, `>&-`) with /dev/null."""
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _configure_output_encoding() -> None:
    """Write UTF-8 to files and pipes, and escape characters that a terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # tests replace the streams
            encoding = None if stream.isatty() else "utf-8"
            reconfigure(encoding=encoding, errors="backslashreplace")
