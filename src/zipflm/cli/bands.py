"""The command that suggests bands for a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zipflm.cli.command import command
from zipflm.cli.common import say


@command("zipflm bands data/words", "zipflm bands data/words --dim 64 --tails 2 --json")
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
        str | None,
        typer.Option(
            help="Whose measured speeds to count with: h200 (for any GPU) or cpu; unless given, "
            "h200 if there is a GPU here."
        ),
    ] = None,
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
        device=device or _device_at_hand(),
    )
    if as_json:
        say(report.as_json())
        return
    Console(width=None if sys.stdout.isatty() else 160).print(report.table())
    say(report.notes())


def _device_at_hand() -> str:
    """Of the devices whose speeds were measured, the one that this machine is most like."""
    import torch

    return "h200" if torch.cuda.is_available() else "cpu"
