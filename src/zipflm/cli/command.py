"""The class of every command: examples in its help, parse errors in one line, Ctrl-C."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar

from typer.core import TyperCommand

from zipflm.cli.common import INTERRUPTED, app, complain
from zipflm.quoting import unquoted

_RESUMABLE = ("compare",)
"""Commands that continue when they are given again."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command of zipflm."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        for param in self.params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # otherwise the help shows the type of a value

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """ValueError for wrong usage, and for an option that would replace an earlier one."""
        try:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            for param, times in Counter(order).items():
                # Click counts a flag's two forms, --this/--not-this, as one option.
                is_single = not getattr(param, "is_flag", False) or param.secondary_opts
                if times > 1 and is_single and not getattr(param, "multiple", False):
                    raise ValueError(f"{'/'.join(_names(param))}: given twice; give one value")
            return super().parse_args(ctx, args)
        except Exception as error:
            # Newer releases of typer have a copy of click, so there is no common class to name.
            if not hasattr(error, "format_message"):
                raise
            if hasattr(error, "possibilities"):
                raise ValueError(self._unknown(ctx, error, args)) from None
            said, remedy = error.format_message().rstrip("."), f"see zipflm {ctx.info_name} --help"
            if "extra argument" in said and any(param.name == "prompt" for param in self.params):
                remedy = "a text to continue follows --prompt"
            raise ValueError(f"{said}; {remedy}") from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with status 130 and a line instead of a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            remedy = "; the same command continues it" if ctx.info_name in _RESUMABLE else ""
            complain(f"{ctx.info_name} was interrupted{remedy}")
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
        said = f"{unquoted(name)}: zipflm {ctx.info_name} has no such option"
        options = [option for param in self.get_params(ctx) for option in _names(param)]
        close = get_close_matches(name, options, n=1, cutoff=0.6)
        if any(param.name == "overrides" for param in self.params):
            from zipflm.overrides import keys_like, keys_of
            from zipflm.presets import from_name

            known = keys_of(from_name("tiny/ADP-T"))
            found = keys_like(name.lstrip("-").replace("-", "_"), known)
            if found:
                return f"{said}; settings are written without dashes: {found[0]}=VALUE"
        remedy = f"did you mean {close[0]}?" if close else f"see zipflm {ctx.info_name} --help"
        return f"{said}; {remedy}"


def _names(param: Any) -> list[str]:
    return [name for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]


def command(
    *examples: str, name: str | None = None, cls: type[Command] = Command
) -> Callable[[_Function], _Function]:
    """Make a function a command of the app, with these examples at the end of its help."""
    # typer makes lines of paragraphs.
    epilog = "\n\n".join(["Examples:", *examples])
    return app.command(name, cls=cls, epilog=epilog)
