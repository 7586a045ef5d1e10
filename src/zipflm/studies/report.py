"""The report of a study: a self-contained page, Markdown, CSV, JSON, LaTeX and figures.

Templates, style sheet and script are files next to this one; jinja2 escapes what goes into the
page.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from zipflm.messages import read_file
from zipflm.settings import load_object, to_dict
from zipflm.storage import write_whole
from zipflm.studies import paper, report_tables, wording
from zipflm.studies.bins import BIN_MODELS, DATASETS, FrequencyBin, bins_of_paper
from zipflm.studies.figures import Style, figures, save_figures, style_of
from zipflm.studies.paper_findings import percent_of
from zipflm.studies.study import Row, Study
from zipflm.studies.tables import (
    EMPTY,
    column_groups,
    columns,
    finite,
    is_best,
    to_csv,
    to_json,
    to_latex,
)
from zipflm.studies.wording import headline


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
    return resources.files("zipflm.studies").joinpath(name).read_text(encoding="utf-8")


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


Maker = Literal["study", "ablation", "analysis"]
"""What a report belongs to: a study or an ablation of one run, which train their members, or an
analysis of runs that are there."""
TABLE = "table.json"
_MEMBERS = "members"


def claim(out: Path, maker: Maker) -> None:
    """Make the folder of a report before the work that it is about.

    ValueError if that cannot be done, or if the folder holds a report of the other kind, which
    would be lost, or a run or data.
    """
    for name, what in (("config.json", "a run"), ("data.json", "data")):
        if (out / name).exists():
            raise ValueError(f"--out {out}: holds {what}; choose another folder for the report")
    held = _maker_of(out)
    if held is None and maker == "analysis" and (out / _MEMBERS).is_dir():
        held = "study"  # which has not come to its report yet
    if held is not None and held != maker:
        raise ValueError(
            f"--out {out}: holds the report of {_KINDS[held]}, which would be overwritten; choose "
            "another --out"
        )
    _make_writable(out)


_KINDS: dict[Maker, str] = {
    "study": "a study",
    "ablation": "an ablation",
    "analysis": "an analysis of runs",
}


def _maker_of(out: Path) -> Maker | None:
    """Whose report a folder holds, if it holds one."""
    try:
        made_by = load_object(read_file(out / TABLE)).get("made_by")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        made_by = None
    for maker in _KINDS:
        if made_by == maker:
            return maker
    raise ValueError(
        f"{out / TABLE}: cannot be read, so whose report it is cannot be told; choose another "
        "--out or remove it first"
    )


def _make_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--out {out}: cannot be made ({error.strerror}); give a folder that can"
        ) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise ValueError(f"--out {out}: cannot be written to; give a folder that can")


def write_report(study: Study, out: Path, maker: Maker) -> Path:
    """Write everything into the folder `out`; the path of the page."""
    _make_writable(out)
    save_figures(study, out / "figures")
    write_whole(out / "table.csv", to_csv(study))
    write_whole(out / "table.tex", to_latex(study, f"{headline(study)}: {study.title}"))
    table = json.dumps(to_json(study, maker), indent=1, allow_nan=False)
    write_whole(out / TABLE, table + "\n")
    write_whole(out / "report.md", markdown(study))
    write_whole(out / "report.html", html(study))
    return out / "report.html"
