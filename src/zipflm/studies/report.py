"""The report of a study: a self-contained HTML page, Markdown, CSV, JSON, LaTeX and figures."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from zipflm.settings import to_dict
from zipflm.storage import atomic_write_text, report_full_disk
from zipflm.studies import tables, wording
from zipflm.studies.bins import BIN_MODELS, DATASETS, FrequencyBin, paper_bins
from zipflm.studies.figures import Style, figures, save_figures, styles_by_label
from zipflm.studies.findings import paper_findings, percent_of
from zipflm.studies.members import StudyMember
from zipflm.studies.paper import SOURCE
from zipflm.studies.plan import FULL_DISK_REMEDY, MEMBERS
from zipflm.studies.study import ModelRow, Study
from zipflm.studies.tables import EMPTY, PAPER, Column, columns, is_best

TABLE = "table.json"
_FILES = (TABLE, "table.csv", "table.tex", "report.md", "report.html")


def write_report(study: Study, out: Path) -> Path:
    """Write all files to the folder `out` and return the path of the HTML page."""
    caption = f"{wording.headline(study)}: {study.title}"
    table = json.dumps(to_json(study), indent=1, allow_nan=False)
    with report_full_disk(out, FULL_DISK_REMEDY):
        out.mkdir(parents=True, exist_ok=True)
        save_figures(study, out / "figures")
        # TABLE first: it marks the other files as replaceable, also if this process is killed.
        atomic_write_text(out / TABLE, table + "\n")
        atomic_write_text(out / "table.csv", to_csv(study))
        atomic_write_text(out / "table.tex", to_latex(study, caption))
        atomic_write_text(out / "report.md", markdown(study))
        atomic_write_text(out / "report.html", html(study))
    return out / "report.html"


def require_report_folder(out: Path, *, is_study: bool = False) -> None:
    """Raise ValueError if a folder contains a run, data, (unless `is_study`) study members, or
    files that a report would replace and no earlier report wrote."""
    contents = {"config.json": "a run", "data.json": "prepared data"}
    if not is_study:
        contents[MEMBERS] = "a study"
    for name, content in contents.items():
        if (out / name).exists():
            raise ValueError(f"out={out}: already contains {content}; choose another folder")
    if (out / TABLE).is_file() and b'"protocol": {' in (out / TABLE).read_bytes():
        return
    for name in _FILES:
        if (out / name).exists():
            raise ValueError(
                f"out={out}: {name} is not from an earlier report; choose another folder"
            )


def html(study: Study) -> str:
    return _render(
        "report.html",
        study,
        css=_read_resource("report.css"),
        script=_read_resource("report.js"),
        styles=list(styles_by_label(study).values()),
        row_indices={row.label: i for i, row in enumerate(study.rows)},
        details={row.label: json.dumps(_details(row), indent=1) for row in study.rows},
        data=_plain(chart_data(study)),
    )


def markdown(study: Study) -> str:
    """Return the report as Markdown, with links to the figures."""
    text = _render("report.md", study, figures=list(figures(study)))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _render(template: str, study: Study, **more: Any) -> str:
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

    environment = Environment(
        autoescape=select_autoescape(["html"]),
        loader=FunctionLoader(_read_resource),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters.update(cell=_cell, code=_code)
    return environment.get_template(template).render(
        study=study,
        columns=columns(study),
        percent_of=percent_of,
        tables=tables,
        wording=wording,
        source=SOURCE,
        **more,
    )


def _read_resource(name: str) -> str:
    return resources.files("zipflm.studies").joinpath(name).read_text(encoding="utf-8")


def _details(row: ModelRow) -> dict[str, Any]:
    return {
        "runs": [
            {"seed": member.seed, "run": member.run, "checkpoint": member.checkpoint}
            for member in row.members
        ],
        "parameters": row.params,
        "versions": to_dict(row.first.versions) if row.first.versions else None,
        "config": to_dict(row.first.config),
    }


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _code(word: str) -> str:
    fence = "`" * (max(map(len, re.findall("`+", word)), default=0) + 1)
    return f"{fence} {word} {fence}" if len(fence) > 1 else f"`{word}`"


def chart_data(study: Study) -> dict[str, Any]:
    """Return the data that `report.js` draws."""
    styles = styles_by_label(study)
    return {
        "split": study.split,
        "reference": study.reference,
        "headline": study.headline_name,
        "models": [_model(row, study, styles[row.label]) for row in study.rows],
        "bins": {
            "word": _bin_sets(study, study.word_bins, previous=False),
            "previous": _bin_sets(study, study.previous_bins, previous=True),
        },
    }


def _model(row: ModelRow, study: Study, style: Style) -> dict[str, Any]:
    interval = study.intervals.get(row.label)
    return {
        "label": row.label,
        "params": row.num_params,
        "perplexity": study.headline(row).mean if row.perplexity else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "curve": row.curve,
        "pattern": style.pattern,
        "marker": style.marker,
        "dash": style.dash,
    }


def _bin_sets(
    study: Study, bins: Sequence[FrequencyBin], *, previous: bool
) -> list[dict[str, Any]]:
    """Return the bins of the study, then the paper's for each dataset with any of its models."""
    study_bins = {"name": "this study", "reference": study.reference, "bins": bins}
    labels = {row.label for row in study.rows}
    of_paper = [
        {
            "name": f"the paper, {DATASETS[dataset]}",
            "reference": "ADP-T",
            "bins": paper_bins(dataset, previous=previous),
        }
        for dataset, models in BIN_MODELS.items()
        if labels & set(models)
    ]
    return [study_bins, *of_paper]


def to_csv(study: Study) -> str:
    """Return the comparison as CSV: one line per model, with the values of all columns."""
    table_columns = columns(study)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table_columns] + ["seeds", "problem"])
    for row in study.rows:
        seeds = " ".join(str(member.seed) for member in row.members)
        writer.writerow([column.value(row) for column in table_columns] + [seeds, row.problem])
    return out.getvalue()


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " "}
    | {"[": "{[}", "*": "{*}"}  # after \\, these would change the line break
    | {"\u00b1": r"$\pm$", "\u2212": "$-$", "\u00a0": "~"}
)


_LATEX_COLUMNS = (
    "model",
    "perplexity 95% interval",
    "parameters all",
    "training time",
    f"{PAPER} test",
)


def to_latex(study: Study, comment: str) -> str:
    """Return perplexities, intervals, parameters and times as a LaTeX table (needs booktabs)."""
    shown = [c for c in columns(study) if c.is_ranked or c.name in _LATEX_COLUMNS]

    def cell(column: Column, row: ModelRow) -> str:
        text = column.text(row)
        text = "--" if text == EMPTY else text.translate(_LATEX)
        return rf"\textbf{{{text}}}" if is_best(column, row, study) else text

    lines = [
        "% " + comment.replace("\n", " "),
        rf"\begin{{tabular}}{{{''.join('r' if c.is_number else 'l' for c in shown)}}}",
        r"\toprule",
        " & ".join(c.name.translate(_LATEX) for c in shown) + r" \\",
        r"\midrule",
        *(" & ".join(cell(c, row) for c in shown) + r" \\" for row in study.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def to_json(study: Study) -> dict[str, Any]:
    """Return the contents of `table.json`."""
    table_columns = columns(study)
    content = {
        "title": study.title,
        "dataset": study.dataset,
        "split": study.split,
        "reference": study.reference,
        "protocol": study.protocol,
        "rows": [
            {column.key: column.value(row) for column in table_columns}
            | {
                "factorization": row.first.factorization,
                "problem": row.problem,
                "params": row.params,
                "curve": row.curve,
                "paper": row.paper,
                "members": [_member(member) for member in row.members],
            }
            for row in study.rows
        ],
        "loss_by_word_frequency": study.word_bins,
        "loss_by_previous_word_frequency": study.previous_bins,
        "words": {label: _words_of(study, label) for label in study.words},
        "contexts": study.contexts,
        "blocks": {
            "unit": study.blocks.unit,
            "count": len(study.blocks),
            "correlation": study.blocks.correlation,
        },
        "differences": [
            {"label": label, "other": other, "nats": interval}
            for (label, other), interval in study.differences.items()
        ],
        "paper_findings": paper_findings(study),
        "tried": study.tried,
    }
    return dict(_plain(content))


def _words_of(study: Study, label: str) -> dict[str, list[dict[str, Any]]]:
    lists = study.words[label]
    return {
        name: [
            {"word": study.vocabulary.words[w.word_id], **asdict(w), "difference": w.difference}
            for w in entries
        ]
        for name, entries in (("wins", lists.wins), ("losses", lists.losses))
    }


def _member(member: StudyMember) -> dict[str, Any]:
    left_out = ("label", "factorization", "nll", "curve")  # in the row, or too large
    values = {f.name: getattr(member, f.name) for f in fields(member) if f.name not in left_out}
    scores = {
        split: {
            "perplexity": score.perplexity,
            "known_perplexity": score.known_perplexity,
            "loss": score.loss,
            "protocol": score.protocol.by_name(),
        }
        for split, score in member.scores.items()
    }
    versions = to_dict(member.versions) if member.versions else None
    config = to_dict(member.config)
    return values | {"seed": member.seed, "scores": scores, "config": config, "versions": versions}


def _plain(value: Any) -> Any:
    """Convert to JSON types: dataclasses to dictionaries, infinity and NaN to None."""
    return to_jsonable_python(value, inf_nan_mode="null")
