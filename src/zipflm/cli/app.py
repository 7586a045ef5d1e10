"""The typer app, its command classes with one-line errors, and options shared by commands."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from zipflm.distributed import STALL_SECONDS as STALL_SECONDS
from zipflm.messages import escape_controls, one_line, unquoted

_HOW_TO_CONTINUE = {
    "build": "; run the same command again to continue",
    "compare": "; run the same command again to continue",
    "train": "; add --resume-if-any to the same command to continue",
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _without_metavar(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


class Commands(TyperGroup):
    """The group of all commands, or a subgroup."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_metavar(super().get_help_option(ctx))

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command. Usage errors become a ValueError."""
        should_exit = options.get("standalone_mode", True)
        try:
            status = super().main(*args, **options | {"standalone_mode": False})
        except Exception as error:
            # Recent typer releases bundle click, so the error classes have no common base.
            if not hasattr(error, "format_message"):
                raise
            raise ValueError(_describe_usage_error(error)) from None
        if should_exit:
            sys.exit(status or 0)
        return status


def _describe_usage_error(error: Any) -> str:
    problem, context = error.format_message().rstrip("."), error.ctx
    if not problem:  # no arguments: the help was printed
        sys.exit(error.exit_code)
    if context is None:
        return str(problem)
    remedy = f"see {context.command_path} --help"
    if hasattr(error, "possibilities") and any(
        p.name == "overrides" for p in context.command.params
    ):
        remedy += "; write settings without dashes, e.g. training.seed=2"
    return f"{problem}; {remedy}"


class Command(TyperCommand):
    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        for param in self.params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # otherwise click shows BOOLEAN

    def get_help_option(self, ctx: Any) -> Any:
        return _without_metavar(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Ctrl-C exits with status 130 and a one-line message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if is_first_process():
                remedy = _HOW_TO_CONTINUE.get(ctx.info_name, "")
                print_error(f"{ctx.info_name}: interrupted{remedy}")
            sys.exit(INTERRUPTED)
        except ValueError as error:
            # Library errors start with an argument, `top_p=2.0: ...`. Show it as an option.
            name, equals, rest = str(error).partition("=")
            for param in self.params:
                if equals and param.name == name and param.opts[0].startswith("--"):
                    option = param.opts[0]
                    if getattr(param, "is_flag", False):  # no value
                        error.args = (f"{option}: {rest.partition(': ')[2]}",)
                    else:
                        error.args = (f"{option} {rest}",)
            raise


def command(
    *examples: str,
    name: str | None = None,
    cls: type[Command] = Command,
    group: typer.Typer | None = None,
) -> Callable[[_Function], _Function]:
    """Register a function as a command, with examples at the end of its help."""
    # typer joins lines, but keeps paragraphs.
    epilog = "\n\n".join(["Examples:", *examples])
    return (group or app).command(name, cls=cls, epilog=epilog)


def arguments(ctx: typer.Context, *own: str) -> dict[str, Any]:
    """Return the arguments of a command, except those named in `own`, for the function of the same
    name in `zipflm.api`, whose parameters have the same names."""
    return {name: value for name, value in ctx.params.items() if name not in own}


_Number = TypeVar("_Number", int, float)

# Exit statuses; the last two are those of a shell for SIGINT and SIGPIPE.
MEMBER_FAILED = 1
INTERRUPTED = 130
CLOSED_PIPE = 141

app: typer.Typer = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train and use large-vocabulary language models. `zipflm info` lists the presets.",
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
        Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@contextmanager
def cleanup_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit (status 143), so that temporary files are removed."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    # Python only allows signal handlers in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_first_process() -> bool:
    """Return True for the process that prints: rank 0 under torchrun."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a function that reports progress as a bar for each task, if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    console = Console(stderr=True)
    bars: dict[str, TaskID] = {}
    with Progress(console=console, disable=not console.is_terminal) as progress:

        def report(task: str, done: int, total: int | None) -> None:
            # A task that is repeated gets a new bar.
            if task not in bars or progress.tasks[bars[task]].finished:
                bars[task] = progress.add_task(task, total=total)
            progress.update(bars[task], advance=done)

        yield report


@contextmanager
def show_progress(*, is_hidden: bool = False) -> Iterator[None]:
    """Show a progress bar for scoring in the first process, if stderr is a terminal."""
    from zipflm.evaluation.progress import on_progress

    if is_hidden or not is_first_process():
        yield
        return
    with progress_bar() as report, on_progress(report):
        yield


def split_commas(option: str, values: Sequence[str] | None) -> tuple[str, ...]:
    """Split comma-separated values of an option that can be repeated."""
    parts = tuple(part.strip() for part in ",".join(values or ()).split(",") if part.strip())
    if values and not parts:
        raise ValueError(f"{option}: empty; give at least one value, or leave it out")
    return parts


def parse_numbers(
    option: str, values: Sequence[str] | None, kind: type[_Number]
) -> tuple[_Number, ...]:
    parts = split_commas(option, values)
    try:
        return tuple(kind(part) for part in parts)
    except ValueError:
        raise ValueError(f"{option} {','.join(parts)}: write numbers separated by commas") from None


def check_argument_order(run: str, files: Sequence[str]) -> None:
    """Raise ValueError if `run` is a file and one of the files is a folder."""
    folder = next(filter(os.path.isdir, files), None)
    if os.path.isfile(run) and folder is not None:
        raise ValueError(f"{run}: a file, not a run; put the run first ({folder})")


def echo(text: str, *, end: str = "\n") -> None:
    """Print text, with control characters escaped on a terminal, because names and words can come
    from any file."""
    print(escape_controls(text) if sys.stdout.isatty() else text, end=end, flush=True)


def echo_stderr(text: str) -> None:
    print(escape_controls(text), file=sys.stderr)


def print_error(text: str) -> None:
    print(f"zipflm: {one_line(text)}", file=sys.stderr)


def _size(text: str) -> int:
    """Parse a number with an optional suffix k, M or B.

    >>> _size("2.5M"), _size("40_000"), _size("40,000")
    (2500000, 40000, 40000)
    """
    number = r"([0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9][0-9_]{0,19})(\.[0-9]{1,9})?([kmb]?)"
    match = re.fullmatch(number, str(text).strip().lower())
    if match is None:
        raise typer.BadParameter(f"{unquoted(text)}: write a number, e.g. 5000000, 5M or 500k")
    digits = match[1].replace("_", "").replace(",", "") + (match[2] or "")
    return round(float(digits) * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[match[3]])


def Size(help: str, default: str | None = None) -> Any:
    """Return an option for a number such as 500k or 5M."""
    return Option(help=help, parser=_size, metavar="SIZE", show_default=default or True)


Overrides = Annotated[
    list[str] | None,
    Argument(help="Settings to change, e.g. decoder.num_layers=8, or @FILE with one per line."),
]
Run = Annotated[
    str,
    Argument(
        help="A run folder or one of its checkpoints, or state-of-the-union (included in zipflm)."
    ),
]
Model = Annotated[
    str,
    Argument(
        help="A run folder or one of its checkpoints, state-of-the-union (included in zipflm), a "
        "folder from `zipflm export`, or the id of such a model on the Hugging Face Hub."
    ),
]
Checkpoint = Annotated[
    str | None,
    Option(help="Checkpoint to use: newest, best or a number of updates.", show_default="newest"),
]
Recipe = Annotated[
    str,
    Option(
        help="Training recipe: paper (preset unchanged) or modern (Muon, rotary positions, ...)."
    ),
]
Block = Annotated[int | None, Option(help="Block length in tokens.", show_default="from the run")]
Context = Annotated[
    int | None,
    Option(
        help="Number of tokens at the start of each block that are context and not scored. The "
        "first block has none.",
        show_default="from the run, unless --block is set",
    ),
]
Device = Annotated[
    str | None,
    Option(help="Device: cpu, cuda, cuda:N or mps.", show_default="cuda if available, else cpu"),
]
Dtype = Annotated[str, Option(help="Precision of the computation: float32, bfloat16 or float16.")]
StallSeconds = Annotated[
    float, Option(min=1, help="Stop all processes if one makes no progress for this many seconds.")
]
Bands = Annotated[
    list[str] | None,
    Option(
        help="Sizes of the vocabulary bands (groups of words by frequency) to compare, e.g. "
        "5k/155k/100k,20k/40k/200k."
    ),
]
TailDropout = Annotated[
    list[str] | None,
    Option(help="Dropout rates of the tail bands (all but the first) to compare, e.g. 0,0.2."),
]
Seeds = Annotated[int, Option(help="Number of seeds to train each model with.")]
Errors = Annotated[
    str, Option(help="How to handle invalid text and NUL bytes: strict (stop) or replace.")
]
Encoding = Annotated[str, Option(help="Encoding of the text: utf-8, latin-1, cp1252, utf-16, ...")]
Memory = Annotated[
    list[str] | None,
    Option(
        help="Mix the model with a memory of earlier text: cache, cache:2000 (the last 2,000 "
        "tokens) or a folder from `zipflm memory build`. Add settings after a comma, e.g. "
        "cache:2000,weight=0.2. Can be repeated."
    ),
]
Json = Annotated[bool, Option("--json", help="Print the results as JSON.")]
Words = Annotated[
    str | None,
    Option(
        help="How to split raw text: whitespace, words (punctuation is split off) or wikitext "
        "(prose, tokenized as in WikiText).",
        show_default="whitespace",
    ),
]
Lowercase = Annotated[bool, Option("--lowercase", help="Lowercase all words.")]
