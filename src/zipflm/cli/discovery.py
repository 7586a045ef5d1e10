"""Commands that say what there is: presets, their settings, and bands that suit a text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zipflm.cli.app import command, expanded, say

if TYPE_CHECKING:
    from rich.table import Table

    from zipflm.config import Config

_COLUMN = 44
"""Where the remarks begin, unless an assignment is longer."""


@command("zipflm presets", "zipflm presets wikitext-103", "zipflm presets tiny --json")
def presets(
    dataset: Annotated[
        str | None, typer.Argument(help="Show the models of this one, e.g. tiny; all unless given.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """List what can be trained: sizes, and what each preset is for."""
    import json

    rows = _datasets() if dataset is None else _models(dataset)
    if as_json:
        say(json.dumps(rows, indent=1))
        return
    _print(_table(rows))
    say(_how_to_go_on(dataset))


@command(
    "zipflm config tiny/ADP-T",
    "zipflm config wikitext-2/ADP-T --recipe modern decoder.num_layers=8",
    "zipflm config demo/SM > my.cfg   (for: zipflm train demo/SM @my.cfg ...)",
)
def config(
    preset: Annotated[str, typer.Argument(help="What to show, e.g. tiny/ADP-T (zipflm presets).")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to it: key=value, or @file with such lines."),
    ] = None,
    *,
    recipe: Annotated[str, typer.Option(help="paper or modern, as for train.")] = "paper",
    data: Annotated[
        str | None,
        typer.Option(
            help="Fit it to this data folder's vocabulary; the preset's own unless given."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print keys, values, types and help as JSON.")
    ] = False,
) -> None:
    """Show every setting of a preset with its value, type and meaning, as lines for train."""
    import json
    from dataclasses import asdict

    from zipflm.settings import fields_of

    found = list(fields_of(_resolved(preset, recipe, expanded(overrides), data)))
    if as_json:
        say(json.dumps([asdict(field) for field in found], indent=1))
        return
    for field in found:
        remark = f"# {field.type}" + (f": {field.help}" if field.help else "")
        # The data folder decides on the vocabulary, whatever a line says.
        start = f"# {field.assignment}" if field.key == "vocab_size" else field.assignment
        say(f"{start:{_COLUMN}} {remark}")


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
    _print(report.table())
    say(report.notes())


def _device_at_hand() -> str:
    """Of the devices whose speeds were measured, the one that this machine is most like."""
    import torch

    return "h200" if torch.cuda.is_available() else "cpu"


def _print(table: Table) -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _resolved(preset: str, recipe: str, overrides: list[str], data: str | None) -> Config:
    from zipflm.data.folder import DataFolder
    from zipflm.presets import from_name
    from zipflm.presets.recipes import resolve

    if data is None:
        size = from_name(preset).vocab_size
    else:
        size = len(DataFolder.open(data).vocabulary)
    return resolve(preset, recipe, overrides, size)


def _datasets() -> list[dict[str, Any]]:
    from zipflm.presets import DATASETS, SIZES, preset

    rows = []
    for name, dataset in DATASETS.items():
        for size in SIZES if dataset.is_of_the_paper else SIZES[:1]:
            config = preset(name, "ADP-T", size=size)
            rows.append(
                {
                    "preset": config.name,
                    **_numbers(config),
                    "for": dataset.purpose if size == SIZES[0] else f"the same, {size}",
                }
            )
    return rows


def _models(dataset: str) -> list[dict[str, Any]]:
    from zipflm.presets import FACTORIZATIONS, preset, variants

    rows = []
    for factorization in FACTORIZATIONS:
        for variant in (None, *variants(dataset, factorization)):
            config = preset(dataset, factorization, variant=variant)
            input, output = config.describe(config.batches.unit)
            row = {"preset": config.name, **_numbers(config), "input": input, "output": output}
            rows.append(row)
    return rows


def _numbers(config: Config) -> dict[str, int]:
    return {
        "parameters": config.num_params(),
        "vocabulary": config.vocab_size,
        "updates": config.training.max_updates,
        "tokens per update": config.training.tokens_per_update,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title, value in rows[0].items():
        is_number = isinstance(value, int)
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else v for v in row.values()))
    return table


def _how_to_go_on(dataset: str | None) -> str:
    from zipflm.presets import FACTORIZATIONS
    from zipflm.presets.recipes import RECIPES

    if dataset is not None:
        return f"zipflm config {dataset}/ADP-T shows every setting of one"
    return (
        f"in place of ADP-T: {', '.join(FACTORIZATIONS)} (zipflm presets tiny says what they are)\n"
        f"--recipe: {', '.join(RECIPES)}; zipflm config tiny/ADP-T shows every setting of a preset"
    )
