"""The typer app, its command classes with one-line errors, and options shared by commands."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from zipflm.messages import lines, one_line, unquoted
from zipflm.training import STALL_SECONDS as STALL_SECONDS

_HOW_TO_CONTINUE = {
    "build": "; run the same command again to continue",
    "compare": "; run the same command again to continue",
    "train": "; add --resume to the same command to continue",
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _without_metavar(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


def _full_name(ctx: Any) -> str:
    """Return the command as typed, for example `zipflm memory build`."""
    return "zipflm" if ctx.parent is None else f"{_full_name(ctx.parent)} {ctx.info_name}"


class Commands(TyperGroup):
    """The group of all commands, or a subgroup."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_metavar(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if not hasattr(error, "possibilities"):  # not click's NoSuchOption
                raise
            option = error.option_name  # type: ignore[attr-defined]
            raise ValueError(f"{option}: no such option; see {_full_name(ctx)} --help") from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands:
            close = get_close_matches(name, self.commands, n=1)
            path = _full_name(ctx)
            remedy = f"did you mean {path} {close[0]}?" if close else f"see {path} --help"
            raise ValueError(f"{path} {unquoted(name)}: no such command; {remedy}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        for param in self.params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # otherwise click shows BOOLEAN

    def get_help_option(self, ctx: Any) -> Any:
        return _without_metavar(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Turn usage errors into ValueError, and reject repeated options."""
        given: dict[str, Any] = {}
        try:
            given, _, order = self.make_parser(ctx).parse_args(list(args))
            for param, times in Counter(order).items():
                # For click, --flag/--no-flag is a single option.
                is_single = not getattr(param, "is_flag", False) or param.secondary_opts
                if times > 1 and is_single and not getattr(param, "multiple", False):
                    raise ValueError(f"{'/'.join(_names(param))}: given twice; use it once")
            return super().parse_args(ctx, args)
        except Exception as error:
            # Recent typer releases bundle click, so the error classes have no common base.
            message = getattr(error, "format_message", None)
            if message is None:
                raise
            if hasattr(error, "possibilities"):
                raise ValueError(self._unknown_option(ctx, error, args)) from None
            problem, remedy = message().rstrip("."), f"see {_full_name(ctx)} --help"
            rejected: Any = getattr(error, "param", None)
            if rejected is not None and given.get(rejected.name) is not None:
                reason = problem.partition(": ")[2].replace("Input should be", "must be")
                problem = f"{rejected.opts[0]} {given[rejected.name]}: {reason}"
            if "extra argument" in problem and any(param.name == "prompt" for param in self.params):
                remedy = "pass the text to continue with --prompt"
            raise ValueError(f"{problem}; {remedy}") from None

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

    def _unknown_option(self, ctx: Any, error: Any, args: list[str]) -> str:
        # For -prompt, click reports -p.
        name = next(arg for arg in args if arg.startswith(error.option_name)).partition("=")[0]
        problem = f"{unquoted(name)}: {_full_name(ctx)} has no such option"
        options = [option for param in self.get_params(ctx) for option in _names(param)]
        names = {option.lstrip("-"): option for option in options if option != "--help"}
        close = get_close_matches(name.lstrip("-"), names, n=1, cutoff=0.6)
        remedy = f"see {_full_name(ctx)} --help"
        if any(param.name == "overrides" for param in self.params):
            from zipflm.field_help import fields_of
            from zipflm.presets import from_name
            from zipflm.settings import keys_like

            known = [field.key for field in fields_of(from_name("tiny/ADP-T"))]
            found = keys_like(name.lstrip("-").replace("-", "_"), known)
            if found:
                settings = " or ".join(f"{key}=VALUE" for key in found)
                return f"{problem}; write settings without dashes: {settings}"
            remedy += ", and zipflm info PRESET for settings"
        if close:
            remedy = f"did you mean {names[close[0]]}?"
        return f"{problem}; {remedy}"


def _names(param: Any) -> list[str]:
    return [name for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]


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
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@contextmanager
def cleanup_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that temporary folders are removed."""

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
def show_progress() -> Iterator[None]:
    """Show a progress bar for scoring, if stderr is a terminal and this is the first process."""
    from zipflm.data.prepare import progress_bar
    from zipflm.evaluation.progress import on_progress

    if not is_first_process():
        yield
        return
    with progress_bar("tokens") as report, on_progress(report):
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


def echo(text: str) -> None:
    """Print lines with control characters escaped, because names can come from any file."""
    typer.echo(lines(text))


def echo_stderr(text: str) -> None:
    print(lines(text), file=sys.stderr)


def print_error(text: str) -> None:
    print(f"zipflm: {one_line(text)}", file=sys.stderr)


def _size(text: str) -> int:
    """Parse a number with an optional suffix k, M or B.

    >>> _size("2.5M"), _size("40_000")
    (2500000, 40000)
    """
    found = re.fullmatch(r"([0-9_,]{1,20}(?:\.[0-9]{1,9})?)([kmb]?)", str(text).strip().lower())
    digits = "" if found is None else found[1].replace("_", "").replace(",", "")
    if found is None or digits[:1] in ("", "."):
        raise typer.BadParameter(f"{unquoted(text)}: write a number, e.g. 5000000, 5M or 500k")
    return round(float(digits) * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[found[2]])


def Size(help: str, default: str | None = None) -> Any:
    """An option for a number such as 500k or 5M."""
    return typer.Option(help=help, parser=_size, metavar="SIZE", show_default=default or True)


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings to change, e.g. decoder.num_layers=8, or @FILE with one per line."
    ),
]
Run = Annotated[str, typer.Argument(help="A run folder, or one of its checkpoints.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint to use: newest, best or a number of updates.", show_default="newest"
    ),
]
Recipe = Annotated[
    str,
    typer.Option(
        help="Training recipe: paper (preset unchanged) or modern (Muon, rotary positions, ...)."
    ),
]
Block = Annotated[
    int | None, typer.Option(help="Block length in tokens.", show_default="from the run")
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Number of tokens of each block after the first that are context and not scored.",
        show_default="from the run",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Device: cpu, cuda, cuda:N or mps.", show_default="cuda if available, else cpu"
    ),
]
Dtype = Annotated[
    str, typer.Option(help="Precision of the computation: float32, bfloat16 or float16.")
]
StallSeconds = Annotated[
    float,
    typer.Option(min=1, help="Stop all processes if one makes no progress for this many seconds."),
]
Bands = Annotated[
    list[str] | None,
    typer.Option(help="Number of words per band, e.g. 5k/155k/100k,20k/40k/200k to try both."),
]
TailDropout = Annotated[
    list[str] | None, typer.Option(help="Dropout rates of the tail bands to try, e.g. 0,0.2.")
]
Seeds = Annotated[int, typer.Option(help="Number of seeds to train each model with.")]
Errors = Annotated[
    str, typer.Option(help="How to handle invalid text and NUL bytes: strict (stop) or replace.")
]
Encoding = Annotated[
    str, typer.Option(help="Encoding of the text: utf-8, latin-1, cp1252, utf-16, ...")
]
Memory = Annotated[
    list[str] | None,
    typer.Option(
        help="Mix a memory with the model: cache, cache:2000 (the last 2,000 tokens) or a store "
        "folder. Add settings after a comma, e.g. cache:2000,weight=0.2. Can be repeated."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Words = Annotated[
    str | None,
    typer.Option(
        help="How to split raw text: whitespace, words (punctuation is split off) or wikitext "
        "(prose, tokenized as in WikiText).",
        show_default="whitespace",
    ),
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Lowercase all words.")]
