"""What all commands share: the app they belong to, parsing of lists, words for the terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, TypeVar

import typer

from zipflm.terminal import lines, one_line

_Number = TypeVar("_Number", int, float)

MEMBER_FAILED = 1
INTERRUPTED = 130
"""What a shell makes of Ctrl-C."""
CLOSED_PIPE = 141
"""What a shell makes of a program that writes to `| head` when that has read enough."""

app: typer.Typer = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Word-level and large-vocabulary language models. `zipflm presets` lists what to train.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from zipflm import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@contextmanager
def removing_what_is_unfinished() -> Iterator[None]:
    """SIGTERM as an exception, so that temporary folders are removed on the way out."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)  # as a shell reports a process that a signal ended

    # Python allows handlers in the main thread only; elsewhere there is nobody to signal.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_first_process() -> bool:
    """Whether this is the one of several processes, started by torchrun, that speaks."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def showing_progress() -> Iterator[None]:
    """A bar, on a terminal, of the text that is scored inside; of several processes the first one
    shows its own."""
    from zipflm.data.progress import progress_bar
    from zipflm.evaluation.watching import watched_by

    if not is_first_process():
        yield
        return
    with progress_bar("tokens") as report, watched_by(report):
        yield


def parts(texts: Sequence[str] | None) -> tuple[str, ...]:
    """The parts between commas of an option that may be given several times."""
    return tuple(part.strip() for part in ",".join(texts or ()).split(",") if part.strip())


def numbers(option: str, texts: Sequence[str] | None, kind: type[_Number]) -> tuple[_Number, ...]:
    found = parts(texts)
    try:
        return tuple(kind(part) for part in found)
    except ValueError:
        said = ",".join(found)
        raise ValueError(f"{option} {said}: write numbers with commas between them") from None


def run_comes_first(run: str, files: Sequence[str]) -> None:
    """ValueError for arguments that were swapped."""
    folder = next(filter(os.path.isdir, files), None)
    if os.path.isfile(run) and folder is not None:
        raise ValueError(f"{run}: a file, where a run is expected; name {folder} first")


def say(text: str) -> None:
    """Print lines in which names may come from anybody's file."""
    typer.echo(lines(text))


def complain(text: str) -> None:
    print(f"zipflm: {one_line(text)}", file=sys.stderr)
