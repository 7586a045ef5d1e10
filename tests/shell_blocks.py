"""Runs what a document shows: its bash and Python blocks, in order, and compares what they print.

Bash is run by bash, with its pipes, loops and here-documents. Only `zipflm` is not the program but
a stand-in that passes arguments and standard input to this process, where torch is loaded already:
loading it takes longer than most commands do.
"""

import contextlib
import io
import json
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from typer.testing import CliRunner

import zipflm.cli

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")

_STAND_IN = f"""#!{sys.executable} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect(os.environ["ZIPFLM_SOCKET"])
    request = json.dumps([sys.argv[1:], sys.stdin.buffer.read().decode("latin-1")])
    line.sendall(request.encode())
    line.shutdown(socket.SHUT_WR)
    status, out, err = json.loads(line.makefile("rb").read())
sys.stderr.write(err)
sys.stdout.buffer.write(out.encode("latin-1"))
sys.exit(status)
"""


class Block(NamedTuple):
    """A fenced part of a document."""

    language: str
    """`bash`, `python`, or nothing for what the blocks before it print."""
    code: str


def blocks_of(page):
    """The fenced blocks of a text in Markdown."""
    return [Block(*match) for match in _FENCED.findall(page)]


def run_blocks(blocks, folder, names=None, *, tells_errors=False):
    """Run the blocks of one document in a folder; what each one printed, both streams together.

    Python blocks share `names`, which may be given so that further blocks can go on with them. An
    error of a user's is raised, unless the document means to show what is said then.
    """
    names = {} if names is None else names
    names.setdefault("__name__", "document")
    with contextlib.chdir(folder):
        return [_run(block, names, tells_errors) for block in blocks]


def require_shown_output(blocks, outputs):
    """Every line that a document shows as output was printed before, with about these numbers."""
    for place, block in enumerate(blocks):
        if block.language:
            continue
        printed = "\n".join(outputs[:place])
        told = [_parsed(line) for line in printed.splitlines()]
        for line in block.code.splitlines():
            shown = _parsed(line)
            assert any(_agree(shown, each) for each in told), f"not printed: {line}\n{printed}"


def _parsed(line):
    """A line without its numbers, and these; tabs may be shown as spaces."""
    return " ".join(_NUMBER.sub("#", line).split()), [*map(_value, _NUMBER.findall(line))]


def _value(number):
    return float(number.replace(",", ""))


def _agree(shown, told):
    """Another machine may add up in another order, and training makes more of the difference."""
    return shown[0] == told[0] and all(
        math.isclose(one, other, rel_tol=0.05, abs_tol=0.05)
        for one, other in zip(shown[1], told[1], strict=True)
    )


def _run(block, names, tells_errors):
    if block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(block.code, "<document>", "exec"), names)
        return said.getvalue()
    return _bash(block.code, tells_errors) if block.language == "bash" else ""


def _bash(code, tells_errors):
    """What a block prints; fails with it if any of its commands fails."""
    # A path to a socket must be short, which folders of tests are not.
    with socket.socket(socket.AF_UNIX) as server, TemporaryDirectory(prefix="zipflm-") as folder:
        server.bind(f"{folder}/socket")
        server.listen()
        server.settimeout(0.05)
        (Path(folder) / "zipflm").write_text(_STAND_IN)
        (Path(folder) / "zipflm").chmod(0o700)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "ZIPFLM_SOCKET": f"{folder}/socket"}
        with open(f"{folder}/output", "w+b") as output:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", code],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                while process.poll() is None:
                    with contextlib.suppress(TimeoutError):
                        _answer(server.accept()[0], tells_errors)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            printed = output.read().decode()
    assert process.returncode == 0, f"{code}\n{printed}"
    return printed


def _answer(connection, tells_errors):
    """Run one command, as the program would."""
    with connection:
        arguments, given = json.loads(connection.makefile("rb").read())
        result = CliRunner().invoke(zipflm.cli.app, arguments, input=given.encode("latin-1"))
        status, said = result.exit_code, result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            if not (tells_errors and isinstance(result.exception, ValueError | OSError)):
                raise result.exception
            status, said = 2, f"{said}zipflm: {result.exception}\n"
        reply = [status, result.stdout_bytes.decode("latin-1"), said]
        connection.sendall(json.dumps(reply).encode())
