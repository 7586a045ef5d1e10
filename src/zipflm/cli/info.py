"""`zipflm info`: presets with their settings and sizes, and suggested bands for a text."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zipflm.cli.app import Device, Json, Overrides, Recipe, command, echo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from zipflm.config import Config
    from zipflm.model.band_search import WeighedBands
    from zipflm.presets import Name

_COMMENT_COLUMN = 44


@command(
    "zipflm info",
    "zipflm info wikitext-103",
    "zipflm info wikitext-2/ADP-T --recipe modern decoder.num_layers=8",
    "zipflm info demo/SM > my.cfg   (for: zipflm train demo/SM @my.cfg ...)",
    "zipflm info --paper",
    "zipflm info --data data/words --dim 64 --json",
)
def info(
    preset: Annotated[
        str | None,
        Argument(
            help="A model, e.g. tiny/ADP-T, to show its settings and parameter counts; or a "
            "dataset, e.g. tiny, to list its models.",
            show_default="list all datasets",
        ),
    ] = None,
    overrides: Overrides = None,
    *,
    recipe: Recipe = "paper",
    data: Annotated[
        str | None,
        Option(
            help="With a model: use the vocabulary size of this data folder. Without one: suggest "
            "vocabulary bands for this data folder, or for a file of words and counts (dict.txt)."
        ),
    ] = None,
    paper: Annotated[
        bool, Option("--paper", help="Compare parameter counts with those in the paper.")
    ] = False,
    dim: Annotated[
        int, Option(help="When suggesting bands: width of the model and of the first band.")
    ] = 1024,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """List presets, show the settings and size of a model, or suggest vocabulary bands for a text.

    Bands are groups of words by frequency, with wider vectors for frequent words.
    The output for a model can be passed to `zipflm train` as @FILE.
    """
    from zipflm.api import assignments
    from zipflm.presets import DATASETS, parse_name

    name = None if preset is None else parse_name(preset)
    is_model = name is not None and name.factorization is not None
    if preset and name and name.dataset not in DATASETS and os.path.exists(preset):
        raise ValueError(f"{preset}: not a preset; to suggest bands for it, use --data {preset}")
    if not is_model and (overrides or (preset and data)):
        raise ValueError(
            "settings, a preset with --data: only for a single model; name one, e.g. tiny/ADP-T"
        )
    if paper:
        _show_paper(as_json)
    elif preset and is_model:
        config = _resolve(preset, recipe, assignments(overrides or []), data)
        _show_model(config, as_json)
    elif data:
        _show_bands(data, dim, device, as_json)
    else:
        _show_presets(name, as_json)


def _show_presets(name: Name | None, as_json: bool) -> None:
    from zipflm.presets import FACTORIZATIONS
    from zipflm.presets.recipes import RECIPES

    rows = _datasets() if name is None else _models(name)
    if as_json:
        echo(json.dumps(rows, indent=1))
        return
    echo(_table(rows))
    if name is not None:
        echo(f"zipflm info {name.dataset}/ADP-T shows all settings of a model")
        return
    echo(
        f"replace ADP-T with: {', '.join(FACTORIZATIONS)} (zipflm info tiny describes them)\n"
        f"--recipe: {', '.join(RECIPES)}; zipflm info tiny/ADP-T shows all settings of a model"
    )


def _show_model(config: Config, as_json: bool) -> None:
    """Print the settings as a file of overrides, with parameter counts as comments."""
    from zipflm.field_help import fields_of

    settings, total = list(fields_of(config)), config.num_params()
    parts = {**config.params_by_part(), "total": total}
    if as_json:
        described = {"settings": [asdict(field) for field in settings], "parameters": parts}
        echo(json.dumps(described, indent=1))
        return
    for field in settings:
        comment = f"# {field.type}" + (f": {field.help}" if field.help else "")
        # The vocabulary size always comes from the data folder.
        start = f"# {field.assignment}" if field.key == "vocab_size" else field.assignment
        echo(f"{start:{_COMMENT_COLUMN}} {comment}")
    rows = [
        {"part": part, "parameters": count, "share": "" if part == "total" else count / total}
        for part, count in parts.items()
    ]
    for line in _table(rows).splitlines():
        echo(f"# {line}")


def _show_paper(as_json: bool) -> None:
    """Print parameter counts next to those in the paper. Exit with status 1 if any differ."""
    from zipflm.presets import from_name
    from zipflm.studies.paper import MODELS

    rows = []
    for model in MODELS:
        count = from_name(model.preset).num_params()
        rows.append({**asdict(model), "parameters": count, "match": model.matches(count)})
    if as_json:
        echo(json.dumps(rows, indent=1))
    else:
        shown = [
            {name: row[name] for name in ("table", "row", "preset", "parameters")}
            | {"paper": f"{row['params']}M", "match": "yes" if row["match"] else "NO"}
            for row in rows
        ]
        echo(_table(shown))
        echo(f"{sum(row['match'] for row in rows)} of {len(rows)} rows match the paper")
    if not all(row["match"] for row in rows):
        raise typer.Exit(1)


def _show_bands(data: str, dim: int, device: str | None, as_json: bool) -> None:
    from zipflm.distributed.processes import resolve_device
    from zipflm.model.band_search import DEVICES, paper_bands, suggest, weigh

    speeds = "cpu" if resolve_device(device) == "cpu" else "h200"
    counts, costs = _counts(Path(data)), DEVICES[speeds]
    suggested = suggest(counts, dim=dim, costs=costs)
    paper = weigh(paper_bands(len(counts), dim), counts, costs)
    if as_json:
        rows = {"suggested": _plain(suggested), "paper": _plain(paper)}
        echo(json.dumps({"speeds": speeds} | rows, indent=1))
        return
    named = {"suggested": suggested, "the paper's proportions": paper}
    table = [
        {
            "bands": name,
            "words": " / ".join(f"{size:,}" for size in row.bands.sizes),
            "width": " / ".join(map(str, row.bands.widths)),
            "of the text": " / ".join(f"{share:.1%}" for share in row.coverage),
            "parameters": row.params,
            "mean width": f"{row.mean_width:.1f}",
            "cost": f"{row.cost / 1e6:.4g}M",
            "relative": f"{row.cost / paper.cost:.2f}",
        }
        for name, row in named.items()
    ]
    echo(_table(table))
    cutoffs = ",".join(map(str, suggested.bands.cutoffs))
    echo(
        "mean width: geometric mean over the text; parameters: of a tied pair; cost: time of the "
        f"output layer\nper token, in multiply-adds of a wide layer ({speeds})\n"
        f"zipflm train ... input.cutoffs={cutoffs} output.cutoffs={cutoffs}"
    )


def _counts(path: Path) -> NDArray[np.int64]:
    """Return the count of each id in the training text.

    `path` is a data folder or a file of words and counts (vocabulary.txt, dict.txt). The counts of
    `</s>` and `<unk>` are 0 for a file, and for a folder without training text.
    """
    from zipflm.data.folder import DataFolder
    from zipflm.data.vocabulary import END, UNKNOWN, Vocabulary

    if path.is_file():
        return Vocabulary.load(path).counts
    folder = DataFolder.open(path)
    counts = folder.vocabulary.counts.copy()
    if "train" in folder.splits:
        train = folder.split("train")
        counts[END], counts[UNKNOWN] = train.sentences, train.unknown
    return counts


def _plain(row: WeighedBands) -> dict[str, Any]:
    return {
        "cutoffs": row.bands.cutoffs,
        "sizes": row.bands.sizes,
        "widths": row.bands.widths,
        "coverage": row.coverage,
        "parameters": row.params,
        "mean_width": row.mean_width,
        "cost": row.cost,
        "explanation": row.explanation,
    }


def _resolve(preset: str, recipe: str, overrides: list[str], data: str | None) -> Config:
    from zipflm.data.folder import DataFolder
    from zipflm.presets import from_name
    from zipflm.presets.recipes import resolve
    from zipflm.settings import parse_text

    if data is not None:
        return resolve(preset, recipe, overrides, len(DataFolder.open(data).vocabulary))
    size, others = from_name(preset).vocab_size, []
    for item in overrides:
        key, _, text = item.partition("=")
        if key == "vocab_size":
            size = parse_text(int, text, key)
        else:
            others.append(item)
    return resolve(preset, recipe, others, size)


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


def _models(name: Name) -> list[dict[str, Any]]:
    from zipflm.presets import FACTORIZATIONS, preset, rivals, variants_of

    configs = [
        preset(name.dataset, factorization, size=name.size, variant=variant)
        for factorization in FACTORIZATIONS
        for variant in (None, *variants_of(name.dataset, factorization))
    ]
    if name.size == "base":
        configs += rivals.MODELS.get(name.dataset, {}).values()
    rows = []
    for config in configs:
        input, output = config.describe(config.batches.unit)
        rows.append({"preset": config.name, **_numbers(config), "input": input, "output": output})
    return rows


def _numbers(config: Config) -> dict[str, int]:
    return {
        "parameters": config.num_params(),
        "vocabulary": config.vocab_size,
        "updates": config.training.max_updates,
        "tokens per update": config.training.tokens_per_update,
    }


_RIGHT_ALIGNED = ("mean width", "cost", "relative", "paper", "share")


def _table(rows: list[dict[str, Any]]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title, value in rows[0].items():
        is_number = isinstance(value, int) or title in _RIGHT_ALIGNED
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    # Without colors, because the table can be a part of a file.
    console = Console(width=None if sys.stdout.isatty() else 160, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


def _cell(value: int | float | str) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else value
