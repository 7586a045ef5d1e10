"""Run the bash and Python blocks of a Markdown page and compare their output with the page.

bash runs the shell blocks, with pipes, loops and here-documents. Only `zipflm` is replaced, by a
script that sends its arguments and standard input to this process: importing torch takes longer
than most commands.
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
    """A fenced block of a page."""

    language: str
    """Empty for the output of earlier blocks."""
    code: str


def blocks_of(page):
    return [Block(*match) for match in _FENCED.findall(page)]


def run_blocks(blocks, folder, names=None):
    """Run blocks in a folder and return the output of each, stdout and stderr together.

    Python blocks share the variables in `names`. Blocks in other languages are skipped.
    """
    names = {} if names is None else names
    names.setdefault("__name__", "document")
    with contextlib.chdir(folder):
        return [_run(block, names) for block in blocks]


def require_shown_output(blocks, outputs):
    """Assert that earlier blocks printed every line shown as output, with similar numbers."""
    for place, block in enumerate(blocks):
        if block.language:
            continue
        printed = "\n".join(outputs[:place])
        known = [_parsed(line) for line in printed.splitlines()]
        for line in block.code.splitlines():
            shown = _parsed(line)
            assert any(_agree(shown, each) for each in known), f"not printed: {line}\n{printed}"


def _parsed(line):
    """Split a line into its text and its numbers; tabs and runs of spaces are equal."""
    return " ".join(_NUMBER.sub("#", line).split()), [*map(_value, _NUMBER.findall(line))]


def _value(number):
    return float(number.replace(",", ""))


def _agree(shown, printed):
    """Machines add in different orders, and training amplifies the difference."""
    return shown[0] == printed[0] and all(
        math.isclose(one, other, rel_tol=0.1, abs_tol=0.05)
        for one, other in zip(shown[1], printed[1], strict=True)
    )


def _run(block, names):
    if block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block.code, "<document>", "exec"), names)
        return output.getvalue()
    return _bash(block.code) if block.language == "bash" else ""


def _bash(code):
    # The path of a socket must be short, and pytest's folders are not.
    with socket.socket(socket.AF_UNIX) as server, TemporaryDirectory(prefix="zipflm-") as folder:
        server.bind(f"{folder}/socket")
        server.listen()
        server.settimeout(0.05)
        (Path(folder) / "zipflm").write_text(_STAND_IN)
        (Path(folder) / "zipflm").chmod(0o700)
        path = os.pathsep.join([folder, str(Path(sys.executable).parent), os.environ["PATH"]])
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
                        _answer(server.accept()[0])
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            printed = output.read().decode()
    assert process.returncode == 0, f"{code}\n{printed}"
    return printed


def _answer(connection):
    """Run one command as the program would."""
    with connection:
        arguments, given = json.loads(connection.makefile("rb").read())
        result = CliRunner().invoke(zipflm.cli.app, arguments, input=given.encode("latin-1"))
        status, errors = result.exit_code, result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            if not isinstance(result.exception, ValueError | OSError):
                raise result.exception
            status, errors = 2, f"{errors}zipflm: {result.exception}\n"
        reply = [status, result.stdout_bytes.decode("latin-1"), errors]
        connection.sendall(json.dumps(reply).encode())
