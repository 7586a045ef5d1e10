"""The command that suggests bands for a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zipflm.cli.common import app, say


@app.command()
def bands(
    data: Annotated[
        str, typer.Argument(help="A data folder, or a file of words and counts (dict.txt).")
    ],
    *,
    dim: Annotated[int, typer.Option(help="Width of the head, the model's own.")] = 1024,
    factor: Annotated[
        float, typer.Option(help="By how much each band is narrower than the one before.")
    ] = 4,
    budget: Annotated[
        str | None,
        typer.Option(help="Parameters at most, e.g. 40M; as the paper's proportions unless given."),
    ] = None,
    tails: Annotated[
        int | None, typer.Option(help="Number of tails; the best of 0 to 3 unless given.")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="Share of the text that the head must hold, 0 to 1.")
    ] = 0.0,
    device: Annotated[
        str, typer.Option(help="Whose measured speeds to count with: h200 or cpu.")
    ] = "h200",
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Suggest where to cut the vocabulary of a text into bands."""
    from rich.console import Console

    from zipflm.band_report import band_report, parse_count

    report = band_report(
        data,
        dim=dim,
        factor=factor,
        budget=None if budget is None else parse_count("--budget", budget),
        tails=tails,
        coverage=coverage,
        device=device,
    )
    if as_json:
        say(report.as_json())
        return
    Console(width=None if sys.stdout.isatty() else 160).print(report.table())
    say(report.notes())
