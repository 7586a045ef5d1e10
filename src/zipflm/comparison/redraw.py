"""The report of a study written again, from what the study keeps: no model is loaded or trained.

Besides the report's own `table.json` it takes the config, the log and the scores of every member;
weights may be missing. So a study that was trained on one machine can be drawn on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zipflm.analysis.building import build
from zipflm.analysis.report import TABLE, claim, write_report
from zipflm.analysis.study import Member, Study, Tried
from zipflm.comparison.compare import scored_splits, scored_text
from zipflm.comparison.members import kept_scores, make_member
from zipflm.comparison.plan import MEMBERS, open_twin, open_words
from zipflm.data.folder import DataFolder
from zipflm.folders import sole_writer
from zipflm.reading import read_file
from zipflm.records import from_dict, load_object
from zipflm.runs.folder import RunFolder


def is_study(path: Path) -> bool:
    """Whether a folder holds the report and the members of a study."""
    return (path / TABLE).is_file() and (path / MEMBERS).is_dir()


def redraw(study: Path, data: Path, out: Path) -> Study:
    """Write the report of the study in the folder `study` again, into `out`."""
    table = load_object(read_file(study / TABLE))
    words = open_words(data)
    splits = scored_splits(words)
    with sole_writer(out):
        claim(out, "analysis")
        try:
            members = [
                _member(study, row, member, words, splits)
                for row in table["rows"]
                for member in row["members"]
            ]
            drawn = build(
                members,
                scored_text(words, splits[-1]),
                title=table["title"],
                dataset=table["dataset"],
                facts=table["facts"],
            )
            tried = tuple(from_dict(Tried, entry) for entry in table["tried"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{study / TABLE}: damaged or of another release ({error!r}); give the compare "
                "command of the study again to have it written anew"
            ) from None
        drawn = replace(drawn, tried=tried)
        write_report(drawn, out, "analysis")
        return drawn


def _member(
    study: Path,
    row: dict[str, Any],
    member: dict[str, Any],
    words: DataFolder,
    splits: Sequence[str],
) -> Member:
    """A member from its entry in `table.json`."""
    # Wherever the study was when it was trained, its members are inside it.
    _, _, inside = member["run"].rpartition(f"{MEMBERS}/")
    run = RunFolder(study / MEMBERS / inside)
    if not run.holds_a_run:
        raise ValueError(f"{run.path}: no run there, but the study's table has it; restore it")
    config = run.config()
    data = words
    if config.batches.unit != "word":
        data = open_twin(words, "take them out of the study")
    return make_member(
        run,
        config,
        label=row["model"],
        factorization=row["factorization"],
        scored=None if member["problem"] else kept_scores(run.path, data, splits),
        words=words,
        data=data,
        split=splits[-1],
        problem=member["problem"],
    )
