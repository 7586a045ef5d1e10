"""Bands suggested for a text, beside the paper's proportions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from zipflm.data.folder import DataFolder
from zipflm.data.vocabulary import END, UNKNOWN, Vocabulary
from zipflm.messages import quoted
from zipflm.model.band_search import DEVICES, WeighedBands, paper_bands, suggest, weigh


@dataclass(frozen=True)
class BandReport:
    """The suggestion and what it competes with, weighed on the same counts."""

    suggested: WeighedBands
    paper: WeighedBands
    speeds: str

    def table(self) -> Table:
        """A row each; the cost is also shown relative to the paper's proportions."""
        table = Table("bands", "words", "width", "of the text", box=None, pad_edge=False)
        for heading in ("parameters", "mean width", "cost", "relative"):
            table.add_column(heading, justify="right")
        for name, row in (("suggested", self.suggested), ("the paper's proportions", self.paper)):
            table.add_row(
                name,
                " / ".join(f"{size:,}" for size in row.bands.sizes),
                " / ".join(map(str, row.bands.widths)),
                " / ".join(f"{share:.1%}" for share in row.coverage),
                f"{row.params:,}",
                f"{row.mean_width:.1f}",
                f"{row.cost / 1e6:.4g}M",
                f"{row.cost / self.paper.cost:.2f}",
            )
        return table

    def notes(self) -> str:
        """What the columns mean, and how to use the suggestion."""
        cutoffs = ",".join(map(str, self.suggested.bands.cutoffs))
        return (
            "mean width: geometric, over the running text; cost: time of the output layer for one "
            f"token,\nin products of a wide layer ({self.speeds}); parameters: of a tied pair\n"
            f"zipflm train ... input.cutoffs={cutoffs} output.cutoffs={cutoffs}"
        )

    def as_json(self) -> str:
        """All numbers, for programs."""
        rows = {"suggested": self.suggested, "paper": self.paper}
        values = {name: _plain(row) for name, row in rows.items()}
        return json.dumps({"speeds": self.speeds} | values, indent=1)


def band_report(
    data: str,
    *,
    dim: int,
    factor: float = 4,
    budget: int | None = None,
    tails: int | None = None,
    coverage: float = 0.0,
    speeds: str = "h200",
) -> BandReport:
    """Bands for a data folder, or for a file of words and counts (vocabulary.txt, dict.txt).

    `speeds` are those measured on an H200, for any GPU, or on a cpu.
    """
    if speeds not in DEVICES:
        raise ValueError(f"speeds={quoted(speeds)}: choose from {', '.join(DEVICES)}")
    counts, costs = _counts(Path(data)), DEVICES[speeds]
    suggested = suggest(
        counts, dim=dim, factor=factor, budget=budget, tails=tails, coverage=coverage, costs=costs
    )
    paper = weigh(paper_bands(len(counts), dim, factor), counts, costs)
    return BandReport(suggested, paper, speeds)


def _counts(path: Path) -> NDArray[np.int64]:
    """How often the training text has each id, `</s>` and `<unk>` included where that is known."""
    if path.is_file():
        return Vocabulary.load(path).counts
    folder = DataFolder.open(path)
    counts = folder.vocabulary.counts.copy()
    if "train" in folder.splits:
        train = folder.split("train")
        counts[END], counts[UNKNOWN] = train.sentences, train.unknown
    return counts


def _plain(row: WeighedBands) -> dict[str, Any]:
    bands = row.bands
    return {
        "cutoffs": bands.cutoffs,
        "sizes": bands.sizes,
        "widths": bands.widths,
        "coverage": row.coverage,
        "parameters": row.params,
        "mean_width": row.mean_width,
        "cost": row.cost,
        "explanation": row.explanation,
    }
