"""The command line: one table of commands, each a thin call of one library function.

Everything heavy is imported inside the command, so that `--help` is instant. A `ValueError` or
`OSError` from the library is the user's to mend: one line on stderr, exit status 2, no traceback.

Other exit statuses: 1 if a study is complete but for members that failed, which a line on stderr
names; 130 if Ctrl-C or SIGTERM stopped a command that has more to do; 141 if the pipe that it
writes to was closed.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

# Importing a module of commands registers them with the app.
from zipflm.cli import data as data
from zipflm.cli import evaluate as evaluate
from zipflm.cli import info as info
from zipflm.cli import interop as interop
from zipflm.cli import language as language
from zipflm.cli import memory as memory
from zipflm.cli import serve as serve
from zipflm.cli import train as train
from zipflm.cli.app import CLOSED_PIPE, app, complain
from zipflm.messages import describe_os_error

_IN_ORDER_OF_WORK = (
    *("prepare", "train", "evaluate", "score", "generate", "rescore", "serve"),
    *("compare", "report", "info", "export", "import"),
)
app.registered_commands.sort(
    key=lambda each: _IN_ORDER_OF_WORK.index(each.name or each.callback.__name__)  # type: ignore[union-attr]
)


def main() -> None:
    """Entry point of the console script."""
    _set_openmp_waiting()
    _open_missing_streams()
    _let_any_text_out()
    try:
        _run()
    except (BrokenPipeError, SystemExit) as ended:
        # typer and rich exit with 1 at a closed pipe; what is buffered may meet it now.
        is_closed = BrokenPipeError in (type(ended), type(ended.__context__))
        if not is_closed and _is_read(sys.stdout):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # which Python flushes when it ends
            os.dup2(nowhere, stream.fileno())
        sys.exit(CLOSED_PIPE)


def _run() -> None:
    try:
        app(prog_name="zipflm")
    except (OSError, ValueError) as error:
        complain(describe_os_error(error) if isinstance(error, OSError) else str(error))
        sys.exit(2)
    except OverflowError as error:  # a number that nothing has refused before
        complain(f"a number is too large to compute with ({error}); give smaller ones")
        sys.exit(2)


def _set_openmp_waiting() -> None:
    """Bound how long OpenMP's threads wait busily, unless the user has decided it.

    Threads that spin for a partner which has no core slow a training down 70 times next to a busy
    process (benchmarks/busy_machine.py). libgomp reads its settings when torch is imported.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "0" if _cores_are_busy() else "1000"


def _cores_are_busy() -> bool:
    """True if other processes are running, so that one thread per core would be too many."""
    try:
        free = (os.cpu_count() or 1) - len(os.sched_getaffinity(0))
        running = []
        for _ in range(5):  # a process that runs now and then does not count
            with open("/proc/loadavg") as file:
                running.append(int(file.read().split()[3].split("/")[0]) - 1)  # without this one
            time.sleep(0.002)
    except (AttributeError, OSError, ValueError, IndexError):  # not Linux
        return False
    return min(running) > free


def _is_read(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:
        return False
    return True


def _open_missing_streams() -> None:
    """Whoever closed a stream (`<&-`, `>&-`) has nothing to say, or wants to hear nothing."""
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _let_any_text_out() -> None:
    """No word stops a command because the system's encoding has no letter for it.

    Files and pipes get UTF-8, as everything that we read is expected to be; a terminal gets what
    it can show, and the rest spelt out.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # somebody may have put another object there
            encoding = None if stream.isatty() else "utf-8"
            reconfigure(encoding=encoding, errors="backslashreplace")
