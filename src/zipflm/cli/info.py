"""`zipflm info`: presets, their settings and sizes, and bands that suit a text."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zipflm.cli.app import Device, Json, Overrides, Size, command, expanded, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from zipflm.config import Config

_COLUMN = 44
"""Where the remarks begin, unless an assignment is longer."""


@command(
    "zipflm info",
    "zipflm info wikitext-103",
    "zipflm info wikitext-2/ADP-T --recipe modern decoder.num_layers=8",
    "zipflm info demo/SM > my.cfg   (for: zipflm train demo/SM @my.cfg ...)",
    "zipflm info --paper",
    "zipflm info --data data/words --dim 64 --tails 2 --json",
)
def info(
    preset: Annotated[
        str | None,
        typer.Argument(
            help="Its settings and parameters, e.g. of tiny/ADP-T; of tiny, the models; unless "
            "given, a list of all."
        ),
    ] = None,
    overrides: Overrides = None,
    *,
    recipe: Annotated[
        str | None, typer.Option(help="Of a preset: paper (if not given) or modern, as for train.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="With a preset: fit it to this data folder's vocabulary, instead of its own. "
            "Alone: suggest bands for this folder, or file of words and counts (dict.txt)."
        ),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Parameters of the paper's models, beside what it prints."),
    ] = False,
    dim: Annotated[
        int | None,
        typer.Option(help="Of bands: width of the head, the model's own; 1024 unless given."),
    ] = None,
    factor: Annotated[
        float | None,
        typer.Option(help="By how much each band is narrower than the one before; 4 unless given."),
    ] = None,
    budget: Annotated[
        int | None,
        Size("Parameters at most, e.g. 40M; as the paper's proportions unless given."),
    ] = None,
    tails: Annotated[
        int | None, typer.Option(help="Number of tails; the best of 0 to 3 unless given.")
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(help="Share of the text that the head must hold, 0 to 1; 0 unless given."),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """What can be trained, every setting and size of a model, and bands that suit a text.

    The settings of a preset are lines for train; its parameters follow as remarks.
    """
    from zipflm.presets import DATASETS

    of_bands = {
        "dim": dim,
        "factor": factor,
        "budget": budget,
        "tails": tails,
        "coverage": coverage,
        "device": device,
    }
    given = {name: value for name, value in of_bands.items() if value is not None}
    model = preset if preset and "/" in preset else None
    if preset is not None and preset.partition("/")[0] not in DATASETS and os.path.exists(preset):
        raise ValueError(f"{preset}: no preset; for bands that suit a text write --data {preset}")
    if paper and (preset or data):
        raise ValueError("--paper: stands alone; leave out the preset and --data")
    if given and (preset or not data):
        raise ValueError(f"--{next(iter(given))}: of bands; give --data, and no preset")
    if model is None and (overrides or recipe or (preset and data)):
        raise ValueError("settings, --recipe: of one model; name it, e.g. tiny/ADP-T")
    if paper:
        _show_paper(as_json)
    elif model is not None:
        config = _resolved(model, recipe or "paper", expanded(overrides), data)
        _show_model(config, as_json)
    elif data:
        _show_bands(data, given, as_json)
    else:
        _show_presets(preset, as_json)


def _show_presets(dataset: str | None, as_json: bool) -> None:
    rows = _datasets() if dataset is None else _models(dataset)
    if as_json:
        say(json.dumps(rows, indent=1))
        return
    _print(_table(rows))
    say(_how_to_go_on(dataset))


def _show_model(config: Config, as_json: bool) -> None:
    """All of it can be read as a file of overrides."""
    from zipflm.settings import fields_of
    from zipflm.sizes import parts_table

    found = list(fields_of(config))
    if as_json:
        settings = [asdict(field) for field in found]
        parameters = {**config.params_by_part(), "total": config.num_params()}
        say(json.dumps({"settings": settings, "parameters": parameters}, indent=1))
        return
    for field in found:
        remark = f"# {field.type}" + (f": {field.help}" if field.help else "")
        # The data folder decides on the vocabulary, whatever a line says.
        start = f"# {field.assignment}" if field.key == "vocab_size" else field.assignment
        say(f"{start:{_COLUMN}} {remark}")
    console = _console()
    with console.capture() as captured:
        console.print(parts_table(config))
    for line in captured.get().splitlines():
        say(f"# {line}")


def _show_paper(as_json: bool) -> None:
    """Exit status 1 if a count is not the paper's."""
    from zipflm.sizes import paper_sizes, sizes_table

    rows = paper_sizes()
    off = sum(not row.matches for row in rows)
    if as_json:
        say(json.dumps([row.as_dict() for row in rows], indent=1))
    else:
        _print(sizes_table(rows))
        say(f"{len(rows) - off} of {len(rows)} rows match the paper")
    if off:
        raise typer.Exit(1)


def _show_bands(data: str, options: dict[str, Any], as_json: bool) -> None:
    from zipflm.band_report import band_report

    device = options.pop("device", None) or _device_at_hand()
    speeds = "cpu" if device == "cpu" else "h200"
    report = band_report(data, **{"dim": 1024, "speeds": speeds, **options})
    if as_json:
        say(report.as_json())
        return
    _print(report.table())
    say(report.notes())


def _device_at_hand() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _print(table: Table) -> None:
    _console().print(table)


def _resolved(preset: str, recipe: str, overrides: list[str], data: str | None) -> Config:
    from zipflm.data.folder import DataFolder
    from zipflm.presets import from_name
    from zipflm.presets.recipes import resolve
    from zipflm.settings import override

    if data is None:
        sizes = [each for each in overrides if each.startswith("vocab_size=")]
        size = override(from_name(preset), sizes).vocab_size
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
        return f"zipflm info {dataset}/ADP-T shows every setting of one"
    return (
        f"in place of ADP-T: {', '.join(FACTORIZATIONS)} (zipflm info tiny says what they are)\n"
        f"--recipe: {', '.join(RECIPES)}; zipflm info tiny/ADP-T shows every setting of a preset"
    )
