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


@app.command()
def params(
    preset: Annotated[
        str | None, typer.Argument(help="One model to break down, e.g. wikitext-103/ADP-T.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it, e.g. decoder.num_layers=8.")
    ] = None,
) -> None:
    """Count parameters: every row of the paper, or one model part by part."""
    from rich.console import Console

    from zipflm.overrides import override
    from zipflm.presets import from_name
    from zipflm.sizes import paper_sizes, parts_table, sizes_table

    console = Console(width=None if sys.stdout.isatty() else 160)
    if preset is not None:
        console.print(parts_table(override(from_name(preset), overrides or [])))
        return
    rows = paper_sizes()
    console.print(sizes_table(rows))
    off = sum(not row.matches for row in rows)
    console.print(f"{len(rows) - off} of {len(rows)} rows match the paper")
    if off:
        raise typer.Exit(1)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"zipflm: {error}", file=sys.stderr)
        sys.exit(2)
