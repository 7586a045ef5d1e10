"""Our parameter counts beside the paper's, and one model part by part."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from zipflm.config import Config
from zipflm.presets import from_name
from zipflm.studies.paper import MODELS, PaperModel


@dataclass(frozen=True)
class SizeRow:
    """A row of the paper and the exact count of the same model here."""

    paper: PaperModel
    num_params: int

    @property
    def matches(self) -> bool:
        return self.paper.matches(self.num_params)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self.paper), "parameters": self.num_params, "match": self.matches}


def paper_sizes() -> list[SizeRow]:
    """Every row of the paper that prints a parameter count, counted from the config alone."""
    return [SizeRow(model, from_name(model.preset).num_params()) for model in MODELS]


def sizes_table(rows: list[SizeRow]) -> Table:
    """All rows, each with whether it matches the paper."""
    table = Table("table", "row", "preset", box=None, pad_edge=False)
    table.add_column("parameters", justify="right")
    table.add_column("paper", justify="right")
    table.add_column("match")
    for row in rows:
        table.add_row(
            row.paper.table,
            row.paper.row,
            row.paper.preset,
            f"{row.num_params:,}",
            f"{row.paper.params}M",
            "yes" if row.matches else "NO",
        )
    return table


def parts_table(config: Config) -> Table:
    """One model, part by part, with each part's share of the whole."""
    total = config.num_params()
    table = Table("part", box=None, pad_edge=False, show_footer=True)
    table.columns[0].footer = "total"
    table.add_column("parameters", justify="right", footer=f"{total:,}")
    table.add_column("share", justify="right")
    for part, count in config.params_by_part().items():
        table.add_row(part, f"{count:,}", f"{count / total:.1%}")
    return table
