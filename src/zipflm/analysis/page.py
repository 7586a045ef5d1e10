"""The report as one page that needs nothing else, and as Markdown.

Templates, style sheet and script are files next to this one; jinja2 escapes what goes into the
page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from zipflm.analysis import paper, report_tables, wording
from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.palette import Style, style_of
from zipflm.analysis.paper_bins import BIN_MODELS, DATASETS, bins_of_paper
from zipflm.analysis.paper_findings import percent_of
from zipflm.analysis.plots import figures
from zipflm.analysis.study import Row, Study
from zipflm.analysis.tables import EMPTY, column_groups, columns, finite, is_best
from zipflm.records import to_dict


def html(study: Study) -> str:
    """The page."""
    text = _render(
        "report.html",
        study,
        css=_file("report.css"),
        script=_file("report.js"),
        looks=list(style_of(study).values()),
        places={row.label: i for i, row in enumerate(study.rows)},
        details={row.label: json.dumps(_details(row), indent=1) for row in study.rows},
        data=finite(chart_data(study)),
    )
    return text.replace("95 %", "95\u00a0%")  # no line ends between the two


def markdown(study: Study) -> str:
    """The report for reading as text; figures are links to files."""
    text = _render("report.md", study, figures=list(figures(study)))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _render(template: str, study: Study, **more: Any) -> str:
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

    environment = Environment(
        autoescape=select_autoescape(["html"]),
        loader=FunctionLoader(_file),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters.update(cell=_cell, code=_code)
    return environment.get_template(template).render(
        study=study,
        columns=columns(study),
        column_groups=column_groups,
        is_best=is_best,
        percent_of=percent_of,
        tables=report_tables,
        wording=wording,
        source=paper.SOURCE,
        empty=EMPTY,
        **more,
    )


def _file(name: str) -> str:
    return resources.files("zipflm.analysis").joinpath(name).read_text(encoding="utf-8")


def _details(row: Row) -> dict[str, Any]:
    return {
        "runs": [
            {"seed": member.seed, "run": member.run, "checkpoint": member.checkpoint}
            for member in row.members
        ],
        "parameters": dict(row.first.params),
        "versions": to_dict(row.first.versions) if row.first.versions else None,
        "config": to_dict(row.first.config),
    }


def _cell(text: str) -> str:
    """A bar or a line break would end a cell of Markdown."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _code(word: str) -> str:
    """A word in backticks, more of them than it has itself."""
    fence = "`" * (max(map(len, re.findall("`+", word)), default=0) + 1)
    return f"{fence} {word} {fence}" if len(fence) > 1 else f"`{word}`"


def chart_data(study: Study) -> dict[str, Any]:
    """The data of the page's charts, as `report.js` reads it; an empty bin's loss is null."""
    looks = style_of(study)
    return {
        "split": study.split,
        "reference": study.reference,
        "headline": study.headline_name,
        "models": [_model(row, study, looks[row.label]) for row in study.rows],
        "bins": {
            "word": _sources(study, study.word_bins, previous=False),
            "previous": _sources(study, study.previous_bins, previous=True),
        },
    }


def _model(row: Row, study: Study, look: Style) -> dict[str, Any]:
    interval = study.headline_interval(row) if row.perplexity else None
    return {
        "label": row.label,
        "params": row.num_params,
        "perplexity": study.headline(row).mean if row.perplexity else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "curve": [asdict(point) for point in row.curve],
        "pattern": look.pattern,
        "marker": look.marker,
        "dash": look.dash,
    }


def _sources(study: Study, bins: Sequence[FrequencyBin], *, previous: bool) -> list[dict[str, Any]]:
    """Our bins first, then the paper's, where it has some of our models."""
    ours = {"name": "this study", "reference": study.reference, "bins": [asdict(b) for b in bins]}
    labels = {row.label for row in study.rows}
    theirs = [
        {
            "name": f"the paper, {DATASETS[dataset]}",
            "reference": "ADP-T",
            "bins": [asdict(b) for b in bins_of_paper(dataset, previous=previous)],
        }
        for dataset, models in BIN_MODELS.items()
        if labels & set(models)
    ]
    return [ours, *theirs]
