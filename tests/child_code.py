"""Python code in a child process that a test can kill."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import zipflm

_START = """
import os, signal, sys, time
from pathlib import Path
from zipflm.storage import atomic_write_text, atomic_write
from zipflm.storage import new_folder, sole_writer
from zipflm.storage import InUse, locked

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def say(what):
    print(what, flush=True)
"""


def start(code, *arguments, **options):
    """Run `code` in a child with `arguments` in `sys.argv[1:]`."""
    source = str(Path(zipflm.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", _START + textwrap.dedent(code), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def killed(code, *arguments):
    """Run code that kills its own process with `die()`."""
    with start(code, *arguments) as child:
        assert child.wait(60) == -signal.SIGKILL


@contextmanager
def waiting(code, *arguments):
    """Run `code` in a child, wait until it prints "ready", and kill it at the end."""
    with start(code, *arguments) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()
