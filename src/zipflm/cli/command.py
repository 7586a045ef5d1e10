"""How every command behaves: its help with examples, wrong options answered in words, Ctrl-C.

Written so that it depends on little of typer: of how that parses and prints, much has changed from
one release to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from typer.core import TyperCommand

from zipflm.cli.common import INTERRUPTED, app, complain
from zipflm.cli.settings import settings_like, value_like
from zipflm.overrides import UnknownKey
from zipflm.quoting import unquoted

_GOING_ON = ("compare",)
"""Commands that, given again, go on where they were."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command of zipflm."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        for param in self.params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # it takes no value, so none is shown, nor the type of one

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """ValueError for an option that the command does not have, with what to write instead; for
        one that would silently replace an earlier one; and for an argument too many."""
        known, given, arguments = self._options(ctx), dict[str, str](), list[str]()
        for name, value in self._split(known, args):
            if not name:
                arguments.append(value or "")
                continue
            if name not in known:
                raise ValueError(self._answer(ctx, name, value, args))
            param = known[name]
            before = None if param.multiple else given.get(param.name)
            if before is not None and not (param.is_flag and name == before):
                what = "given twice" if name == before else f"contradicts {before}"
                raise ValueError(f"{name}: {what}; give one value")
            given[param.name] = name
        self._require_few(ctx, arguments)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Ctrl-C ends a command without a traceback, and not as if it had done its work."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            goes_on = "; the same command goes on" if ctx.info_name in _GOING_ON else ""
            complain(f"{ctx.info_name} was interrupted{goes_on}")
            sys.exit(INTERRUPTED)
        except UnknownKey as error:
            found = settings_like(error.key, ctx.params.values())
            if not found:
                raise
            keys = " or ".join(found)
            raise ValueError(f"unknown key {unquoted(error.key)}: did you mean {keys}?") from None
        except ValueError as error:
            # The library names its arguments, `top_p=2.0: ...`; here they are options.
            name, equals, rest = str(error).partition("=")
            for option, param in self._options(ctx).items():
                if equals and param.name == name:
                    error.args = (f"{option} {rest}",)
                    break
            raise

    def _options(self, ctx: Any) -> dict[str, Any]:
        return {
            name: param
            for param in self.get_params(ctx)
            for name in (*param.opts, *param.secondary_opts)
            if name.startswith("-")
        }

    def _split(
        self, known: Mapping[str, Any], args: Sequence[str]
    ) -> Iterator[tuple[str, str | None]]:
        """Long options, each with the value that seems to be meant for it, and arguments, whose
        name is empty."""
        rest = list(args)
        while rest:
            arg = rest.pop(0)
            if arg == "--":
                yield from (("", each) for each in rest)
                return
            name, equals, value = arg.partition("=")
            if name in known:
                takes_next = not equals and not known[name].is_flag and rest
                # Its value, whatever that looks like.
                yield name, rest.pop(0) if takes_next else value
            elif name.startswith("--") or (name.startswith("-") and name[1:2].isalpha()):
                follows = rest[0] if rest and not rest[0].startswith("--") else None
                yield name, value if equals else follows
            elif arg == "-" or not arg.startswith("-"):
                yield "", arg

    def _require_few(self, ctx: Any, arguments: Sequence[str]) -> None:
        wanted = [param for param in self.params if not param.opts[0].startswith("-")]
        if any(param.nargs != 1 for param in wanted) or len(arguments) <= len(wanted):
            return
        stray = unquoted(arguments[len(wanted)])
        if "--prompt" in self._options(ctx):
            raise ValueError(f"{stray}: an argument too many; a text to continue follows --prompt")
        raise ValueError(f"{stray}: an argument too many; see zipflm {ctx.info_name} --help")

    def _answer(self, ctx: Any, name: str, value: str | None, args: Sequence[str]) -> str:
        what = f"{unquoted(name)}: zipflm {ctx.info_name} has no such option"
        if any(param.name == "overrides" for param in self.params):
            found = settings_like(name.lstrip("-"), args)
            if found:
                said = value_like(name.lstrip("-"), value)
                written = " or ".join(f"{key}={said}" for key in found)
                return f"{what}; settings are written without dashes: {written}"
        close = get_close_matches(name, self._options(ctx), n=1, cutoff=0.6)
        if close:
            return f"{what}; did you mean {close[0]}?"
        return f"{what}; see zipflm {ctx.info_name} --help"


def command(
    *examples: str, name: str | None = None, cls: type[Command] = Command
) -> Callable[[_Function], _Function]:
    """Make a function a command of the app, with these examples at the end of its help."""
    # typer makes lines of paragraphs.
    epilog = "\n\n".join(["Examples:", *examples])
    return app.command(name, cls=cls, epilog=epilog)
