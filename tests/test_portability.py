"""What only Unix has is not needed: hidden from a process, it does all of a first session.

This shows that nothing asks for these modules and functions without a fallback. It does not show
how Windows or macOS behave where they have something of the same name.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import environment

import zipflm

SOURCES = sorted(Path(zipflm.__file__).parent.rglob("*.py"))

AS_ELSEWHERE = """
import ctypes, os, shutil, signal, sys, types
# The libraries are the business of their authors, and look for the system's modules when loaded.
import matplotlib.figure, numpy, rich.progress, safetensors.torch, tokenizers, torch, typer
import torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor, torch.utils.data
import multiprocessing, subprocess, tempfile, concurrent.futures.process

for name in ("resource", "fcntl", "pwd", "grp", "termios", "tty", "syslog", "readline"):
    sys.modules[name] = None  # importing it fails from here on
for name in ("fork", "forkpty", "sched_getaffinity", "register_at_fork", "getuid", "geteuid",
             "uname", "statvfs", "getpgid", "setsid", "killpg", "fchmod", "mkfifo",
             "getloadavg"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGHUP", "SIGKILL", "SIGCHLD", "SIGPIPE"):
    if hasattr(signal, name):
        delattr(signal, name)
locked = []
def locking(descriptor, mode, size):
    locked.append(descriptor)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
# A folder can be opened on Unix alone; the library that removes trees knows that.
shutil._use_fd_functions = False
plain_open = os.open
def open_no_folder(path, *rest, **options):
    if not isinstance(path, int) and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fspath(path))
    return plain_open(path, *rest, **options)
os.open = open_no_folder
def no_c_library(name=None, *rest, **options):
    raise TypeError("argument of type 'NoneType' is not iterable")
ctypes.CDLL = no_c_library
torch.set_num_threads(1)

from zipflm.cli import app

def zipflm(*arguments):
    try:
        app(list(map(str, arguments)))
    except SystemExit as end:
        assert not end.code, (arguments, end.code)

with open("text.txt", "w", encoding="utf-8") as file:
    file.write("the cat sat on the mat\\na dog sat on a log\\n" * 60)
zipflm("prepare", "text.txt", "--out", "data", "--processes", "1")
with open("held.txt", "w", encoding="utf-8") as file:
    file.write("the dog sat on the mat\\n")
run = ["train", "tiny/ADP-T", "--data", "data", "--out", "run", "--device", "cpu"]
zipflm(*run, "training.max_updates=2")
zipflm(*run, "training.max_updates=3", "--resume")
zipflm("evaluate", "run", "--text", "held.txt")
zipflm("score", "run", "held.txt", "--per", "total")
assert locked, "the lock of Windows was not asked for"
"""


@pytest.mark.slow
def test_a_first_session_needs_nothing_that_only_unix_has(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AS_ELSEWHERE],
        cwd=tmp_path,
        env=environment() | {"CUDA_VISIBLE_DEVICES": ""},  # torch counts GPUs by such means
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "update 3/3" in done.stdout and "perplexity" in done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_module_imports_what_only_unix_has_at_its_top(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"^(import|from) (resource|fcntl|pwd|grp|termios)\b", text, re.MULTILINE)
