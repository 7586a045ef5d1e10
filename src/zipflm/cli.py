"""The command line: one table of commands, each a thin call of one library function.

Everything heavy is imported inside the command, so that `--help` is instant. A `ValueError` or
`OSError` from the library is the user's to mend: one line on stderr, exit status 2, no traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Word-level and large-vocabulary language models.",
)


@app.callback()
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from zipflm import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"zipflm: {error}", file=sys.stderr)
        sys.exit(2)
