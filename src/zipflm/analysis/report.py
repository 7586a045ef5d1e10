"""Write a study: `report.html`, `report.md`, `table.csv`, `table.json`, `table.tex`, figures.

Files appear whole or not at all, so that a reader who opens the page while a study goes on sees a
complete one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from zipflm.analysis import page, page_tables, paper
from zipflm.analysis.findings import findings
from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.headline import headline
from zipflm.analysis.paper_findings import percent_of
from zipflm.analysis.plots import figures, save_figures
from zipflm.analysis.study import Study
from zipflm.analysis.tables import EMPTY, columns, context_rows, to_csv, to_json, to_latex
from zipflm.analysis.word_lists import WordDifference
from zipflm.files import write_whole
from zipflm.reading import read_file
from zipflm.records import load_object

_CAPTIONS = {
    "loss-by-word-frequency": "Loss by frequency of the word",
    "loss-by-previous-word-frequency": "Loss by frequency of the previous word",
    "learning-curves": "Learning curves",
    "perplexity-against-time": "Perplexity against training time",
    "parameters-against-perplexity": "Parameters against perplexity",
    "paper-loss-by-word-frequency": "The paper's: loss by frequency of the word",
    "paper-loss-by-previous-word-frequency": "The paper's: loss by frequency of the previous word",
}


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
    write_whole(out / "report.html", page.render(study))
    return out / "report.html"


def markdown(study: Study) -> str:
    """The report for reading as text; figures are links to the files beside it."""
    table_columns = columns(study)
    names = [f"{column.group} {column.title}".strip() for column in table_columns]
    rows = [
        [column.text(row) for column in table_columns] + ([row.problem] if row.problem else [""])
        for row in study.rows
    ]
    if not any(row.problem for row in study.rows):
        rows = [row[:-1] for row in rows]
    else:
        names.append("problem")
    parts = [
        f"# {headline(study)}",
        f"{study.title}: {page.lead(study)}",
        _table(names, rows),
        page.caption(study),
    ]
    parts += ["\n".join(f"- {sentence}" for sentence in findings(study))]
    parts += _statistics(study)
    for title, bins in (("word", study.word_bins), ("previous word", study.previous_bins)):
        parts += [f"## Loss by frequency of the {title}", _bins(study, bins)]
    parts += [f"![{_CAPTIONS[name]}](figures/{name}.svg)" for name in figures(study)]
    if study.contexts:
        parts += ["## Context", page.CONTEXT_CAPTION, _table(*context_rows(study))]
    parts += ["## Words won and lost", page.words_caption(study), *_words(study)]
    parts += ["## Protocol", _facts(study), _protocol(study), f"The paper is {paper.SOURCE}."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _statistics(study: Study) -> list[str]:
    """Pairs, the paper's findings, what each model saw, what was tuned."""
    parts = []
    if study.differences:
        labels = [row.label for row in study.ranked]
        rows = [[label, *(_pair(study, label, other) for other in labels)] for label in labels]
        caption = f"{page_tables.PAIRS_CAPTION} {page.interval_caption(study)}"
        parts += ["## Every pair", caption, _table(["", *labels], rows)]
    rows = page_tables.findings_rows(study)
    if rows:
        caption = page_tables.findings_caption(study)
        table = _table(page_tables.CLAIMS_NAMES, page_tables.claims_rows(study))
        parts += ["## The paper's findings", caption, table]
        parts += [_table(page_tables.FINDINGS_NAMES, rows)]
    rows = page_tables.tuning_rows(study)
    if rows:
        table = _table(page_tables.TUNING_NAMES, rows)
        parts += ["## Tuning", page_tables.TUNING_CAPTION, table]
    names, rows = page_tables.seen_rows(study)
    if rows:
        parts += ["## What each model saw", page_tables.SEEN_CAPTION, _table(names, rows)]
    return parts


def _pair(study: Study, label: str, other: str) -> str:
    found = study.difference(label, other)
    if found is None:
        return "" if label == other else EMPTY
    text = percent_of(found.nats)
    return f"**{text}**" if found.nats.excludes_zero else text


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """A bar or a line break would end the cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _bins(study: Study, bins: Sequence[FrequencyBin]) -> str:
    labels = [row.label for row in study.finished]
    names = ["occurrences", "different words", "in training", f"in {study.split}", *labels]
    rows = [
        [
            b.name,
            f"{b.types:,}",
            EMPTY if b.train_tokens is None else f"{b.train_tokens:,}",
            f"{b.tokens:,}",
            *(page.bin_cell(b, label) for label in labels),
        ]
        for b in bins
    ]
    return _table(names, rows)


def _words(study: Study) -> list[str]:
    def listed(words: Sequence[WordDifference]) -> str:
        return ", ".join(
            f"{_code(study.vocabulary.words[w.word_id])} {w.difference:+.2f} ({w.train_count:,})"
            for w in words
        )

    rows = [
        [label, listed(lists.wins) or "none", listed(lists.losses) or "none"]
        for label, lists in study.words.items()
    ]
    return [_table(["model", "wins (nats, training count)", "losses"], rows)] if rows else []


def _code(word: str) -> str:
    """A word as it is; one with backticks between more of them than it has."""
    fence = "`" * (max(map(len, re.findall("`+", word)), default=0) + 1)
    return f"{fence} {word} {fence}" if len(fence) > 1 else f"`{word}`"


def _facts(study: Study) -> str:
    return "\n".join(f"- {key}: {value}" for key, value in study.facts.items())


def _protocol(study: Study) -> str:
    rows = page.protocol_rows(study)
    names = list(dict.fromkeys(key for row in rows for key in row))
    return _table(names, [[row.get(name, EMPTY) for name in names] for row in rows]) if rows else ""
