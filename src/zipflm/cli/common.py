"""What all commands share: the app they belong to, parsing of lists, words for the terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, TypeVar

import typer

from zipflm.terminal import lines, one_line

_Number = TypeVar("_Number", int, float)

MEMBER_FAILED = 1
INTERRUPTED = 130
"""What a shell makes of Ctrl-C."""

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


@contextmanager
def ending_quietly_where_nobody_reads() -> Iterator[None]:
    """`| head` closes the pipe when it has enough, which is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


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


def parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def numbers(option: str, text: str | None, kind: type[_Number]) -> tuple[_Number, ...]:
    try:
        return tuple(kind(part) for part in parts(text))
    except ValueError:
        raise ValueError(f"{option} {text}: write numbers with commas between them") from None


def say(text: str) -> None:
    """Print lines in which names may come from anybody's file."""
    typer.echo(lines(text))


def complain(text: str) -> None:
    print(f"zipflm: {one_line(text)}", file=sys.stderr)
