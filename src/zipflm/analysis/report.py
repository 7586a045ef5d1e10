"""Write a study: `report.html`, `report.md`, `table.csv`, `table.json`, `table.tex`, figures.

Files appear whole or not at all, so that a reader who opens the page while a study goes on sees a
complete one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from zipflm.analysis import page
from zipflm.analysis.plots import save_figures
from zipflm.analysis.study import Study
from zipflm.analysis.tables import to_csv, to_json, to_latex
from zipflm.analysis.wording import headline
from zipflm.files import write_whole
from zipflm.reading import read_file
from zipflm.records import load_object

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
    write_whole(out / "report.md", page.markdown(study))
    write_whole(out / "report.html", page.html(study))
    return out / "report.html"
