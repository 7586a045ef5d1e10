"""The app that all commands belong to: its command class, errors in one line, options that
commands share.
"""

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

_RENAMED = {
    "presets": "zipflm info",
    "config": "zipflm info PRESET",
    "params": "zipflm info PRESET, or zipflm info --paper",
    "bands": "zipflm info --data DATA",
    "analyse": "zipflm report",
    "plot": "zipflm report RUNS --curves FILE",
    "ensemble": "zipflm evaluate FILE FILE",
    "export-hf": "zipflm export RUN OUT",
    "import-hf": "zipflm import FOLDER OUT",
    "import-fairseq": "zipflm import FILE OUT --dict DICT",
    "export --out": "zipflm export RUN OUT",
    "import --out": "zipflm import SOURCE OUT",
    "import --split": "--words",
    "prepare --split": "--words",
    "evaluate --precision": "--dtype",
    "evaluate --tune-weights": "--weights fit",
    "generate --jsonl": "--json",
    "rescore --tune-names": "--tune",
    "compare --tune": "--grid",
}
"""Commands and options under earlier names."""

_CONTINUED = {
    "build": "; the same command continues it",
    "compare": "; the same command continues it",
    "train": "; the same command with --resume continues it",
}
"""How to continue commands that were interrupted."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


def _path(ctx: Any) -> str:
    """A command or group as a user writes it."""
    return "zipflm" if ctx.parent is None else f"{_path(ctx.parent)} {ctx.info_name}"


class Commands(TyperGroup):
    """All commands of zipflm, or of a group."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if not hasattr(error, "possibilities"):  # of an unknown option
                raise
            option = error.option_name  # type: ignore[attr-defined]
            raise ValueError(f"{option}: no such option; see {_path(ctx)} --help") from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in _RENAMED and ctx.parent is None:
            raise ValueError(f"zipflm {name}: is {_RENAMED[name]} now")
        if name not in self.commands:
            close = get_close_matches(name, self.commands, n=1)
            path = _path(ctx)
            remedy = f"did you mean {path} {close[0]}?" if close else f"see {path} --help"
            raise ValueError(f"{path} {unquoted(name)}: no such command; {remedy}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command of zipflm."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        for param in self.params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # otherwise the help shows the type of a value

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """ValueError for wrong usage, and for an option that would replace an earlier one."""
        given: dict[str, Any] = {}
        try:
            given, _, order = self.make_parser(ctx).parse_args(list(args))
            for param, times in Counter(order).items():
                # Click counts a flag's two forms, --this/--not-this, as one option.
                is_single = not getattr(param, "is_flag", False) or param.secondary_opts
                if times > 1 and is_single and not getattr(param, "multiple", False):
                    raise ValueError(f"{'/'.join(_names(param))}: given twice; give one value")
            return super().parse_args(ctx, args)
        except Exception as error:
            # Newer releases of typer have a copy of click, so there is no common class to name.
            message = getattr(error, "format_message", None)
            if message is None:
                raise
            if hasattr(error, "possibilities"):
                raise ValueError(self._unknown(ctx, error, args)) from None
            said, remedy = message().rstrip("."), f"see {_path(ctx)} --help"
            refused: Any = getattr(error, "param", None)
            if refused is not None and refused.name in given:
                reason = said.partition(": ")[2].replace("Input should be", "must be")
                said = f"{refused.opts[0]} {given[refused.name]}: {reason}"
            if "extra argument" in said and any(param.name == "prompt" for param in self.params):
                remedy = "a text to continue follows --prompt"
            raise ValueError(f"{said}; {remedy}") from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with status 130 and a line instead of a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if is_first_process():
                complain(f"{ctx.info_name} was interrupted{_CONTINUED.get(ctx.info_name, '')}")
            sys.exit(INTERRUPTED)
        except ValueError as error:
            # The library names its arguments, `top_p=2.0: ...`; here they are options.
            name, equals, rest = str(error).partition("=")
            for param in self.params:
                if equals and param.name == name and param.opts[0].startswith("--"):
                    error.args = (f"{param.opts[0]} {rest}",)
            raise

    def _unknown(self, ctx: Any, error: Any, args: list[str]) -> str:
        """What to write instead of an option that the command does not have."""
        # Of -prompt, click names -p.
        name = next(arg for arg in args if arg.startswith(error.option_name)).partition("=")[0]
        said = f"{unquoted(name)}: {_path(ctx)} has no such option"
        new = _RENAMED.get(f"{ctx.info_name} {name}")
        if new is not None:
            return f"{said}; write {new}"
        options = [option for param in self.get_params(ctx) for option in _names(param)]
        names = {option.lstrip("-"): option for option in options if option != "--help"}
        close = get_close_matches(name.lstrip("-"), names, n=1, cutoff=0.6)
        remedy = f"see {_path(ctx)} --help"
        if any(param.name == "overrides" for param in self.params):
            from zipflm.presets import from_name
            from zipflm.settings import keys_like, keys_of

            known = keys_of(from_name("tiny/ADP-T"))
            found = keys_like(name.lstrip("-").replace("-", "_"), known)
            if found:
                settings = " or ".join(f"{key}=VALUE" for key in found)
                return f"{said}; settings are written without dashes: {settings}"
            remedy += ", and zipflm info PRESET for settings"
        if close:
            remedy = f"did you mean {names[close[0]]}?"
        return f"{said}; {remedy}"


def _names(param: Any) -> list[str]:
    return [name for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]


def command(
    *examples: str,
    name: str | None = None,
    cls: type[Command] = Command,
    group: typer.Typer | None = None,
) -> Callable[[_Function], _Function]:
    """Make a function a command of the app, or of a group, with examples at the end of its help."""
    # typer makes lines of paragraphs.
    epilog = "\n\n".join(["Examples:", *examples])
    return (group or app).command(name, cls=cls, epilog=epilog)


_Number = TypeVar("_Number", int, float)

MEMBER_FAILED = 1
INTERRUPTED = 130
"""What a shell makes of Ctrl-C."""
CLOSED_PIPE = 141
"""What a shell makes of a program that writes to `| head` when that has read enough."""

app: typer.Typer = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Word-level and large-vocabulary language models. `zipflm info` lists what to train.",
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
    from zipflm.data.prepare import progress_bar
    from zipflm.evaluation.progress import on_progress

    if not is_first_process():
        yield
        return
    with progress_bar("tokens") as report, on_progress(report):
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


def tell(text: str) -> None:
    """Print lines for people where the output is for programs."""
    print(lines(text), file=sys.stderr)


def complain(text: str) -> None:
    print(f"zipflm: {one_line(text)}", file=sys.stderr)


def _size(text: str) -> int:
    """A number as people write it.

    >>> _size("2.5M"), _size("40_000")
    (2500000, 40000)
    """
    found = re.fullmatch(r"([0-9_,]{1,20}(?:\.[0-9]{1,9})?)([kmb]?)", str(text).strip().lower())
    digits = "" if found is None else found[1].replace("_", "").replace(",", "")
    if found is None or digits[:1] in ("", "."):
        raise typer.BadParameter(f"{unquoted(text)}: write a number, e.g. 5000000, 5M or 500k")
    return round(float(digits) * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[found[2]])


def Size(help: str) -> Any:
    """An option for a number that may be written 500k or 5M."""
    return typer.Option(help=help, parser=_size, metavar="SIZE")


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to it, e.g. decoder.num_layers=8, or @file with such lines (zipflm info)."
    ),
]
Run = Annotated[str, typer.Argument(help="A run folder, or one of its checkpoints.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(help="Of a run: newest (if not given), best or a number of updates."),
]
Recipe = Annotated[
    str, typer.Option(help="paper (as published) or modern (Muon, bfloat16, rotary ...).")
]
Block = Annotated[
    int | None, typer.Option(help="Tokens the model sees at once; the run's own unless given.")
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Tokens of each block, after the first of a text, that are context and not scored; "
        "the run's own unless given."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:N or mps; unless given, a CUDA GPU if there is one."),
]
Dtype = Annotated[str, typer.Option(help="To compute in: float32, bfloat16 or float16.")]
StallSeconds = Annotated[
    float,
    typer.Option(min=1, help="Stop all processes if one does not answer for this many seconds."),
]
Bands = Annotated[
    list[str] | None,
    typer.Option(help="Train with these words per band, e.g. 5k/155k/100k,20k/40k/200k."),
]
TailDropout = Annotated[
    list[str] | None, typer.Option(help="Train with these dropouts in the tail bands, e.g. 0,0.2.")
]
Seeds = Annotated[
    int, typer.Option(help="Number of runs of everything trained, with different seeds.")
]
Errors = Annotated[
    str, typer.Option(help="On NUL bytes or invalid text: strict (stop) or replace.")
]
Encoding = Annotated[
    str,
    typer.Option(help="Of the text: utf-8, latin-1, cp1252, utf-16 or another that Python has."),
]
Memory = Annotated[
    list[str] | None,
    typer.Option(
        help="Mix a memory with the model: cache:2000 (the last 2,000 words), cache, or the folder "
        "of a store; settings follow commas, e.g. cache:2000,weight=0.2; can be repeated."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")]
Words = Annotated[
    str | None,
    typer.Option(
        help="How raw text becomes words: whitespace, words (punctuation split off) or wikitext "
        "(prose in the form of WikiText); whitespace unless given."
    ),
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Lowercase all words.")]
