"""`zipflm report` on studies: write a report from their saved scores, without the weights.

Needs `table.json`, the data folder with the training text, and the config, log, versions and saved
scores of every member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.runs.folder import RunFolder
from zipflm.settings import from_dict, read_value
from zipflm.storage import sole_writer
from zipflm.studies.members import StudyMember, make_member, saved_scores
from zipflm.studies.plan import (
    MEMBERS,
    MEMORY_MARK,
    RESULT_NEUTRAL,
    Plan,
    open_bpe_data,
    open_words,
    scored_splits,
)
from zipflm.studies.report import TABLE, require_report_folder, write_report
from zipflm.studies.study import Study, Tried, build_study, split_text
from zipflm.training.checks import different_settings


def is_study(path: Path) -> bool:
    """Return whether a folder contains the report and the members of a study."""
    return (path / TABLE).is_file() and (path / MEMBERS).is_dir()


def redraw(studies: Sequence[Path], data: Path, out: Path) -> Study:
    """Rebuild a study from the folders of one study, or of several with different seeds, and write
    its report to `out`."""
    words = open_words(data)
    splits = scored_splits(words)
    with sole_writer(out):
        require_report_folder(out)
        saved = [_saved_study(study, words, splits) for study in studies]
        members = _all_seeds([member for study in saved for member in study.members])
        if len(studies) > 1:
            _require_same_study(saved, members)
        redrawn = build_study(
            members,
            split_text(words, splits[-1]),
            title=saved[0].header.title,
            dataset=saved[0].header.dataset,
            protocol=_joined_protocol(saved, members),
            tried=_joined_tried(saved),
        )
        write_report(redrawn, out)
        return redrawn


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The entries of `table.json` that are not computed from the members."""

    title: str
    dataset: str
    protocol: Mapping[str, str]
    tried: tuple[Tried, ...]


@dataclass(frozen=True, kw_only=True)
class _SavedStudy:
    path: Path
    header: _Header
    members: list[StudyMember]

    def about(self, name: str) -> str:
        """Return an entry of the protocol."""
        return self.header.protocol.get(name, "")


def _saved_study(path: Path, words: DataFolder, splits: Sequence[str]) -> _SavedStudy:
    table = read_value(dict[str, Any], path / TABLE)
    try:
        header = from_dict(_Header, {field.name: table[field.name] for field in fields(_Header)})
        entries = [(row, member) for row in table["rows"] for member in row["members"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None
    members = []
    for row, member in entries:
        try:
            plan, problem = _saved_plan(path, row, member, words)
        except (KeyError, TypeError, AttributeError) as error:
            raise _damaged(path, error) from None
        members.append(_saved_member(plan, problem, words, splits))
    return _SavedStudy(path=path, header=header, members=members)


def _damaged(study: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{study / TABLE}: damaged or written by another version of zipflm ({error!r}); run the "
        "compare command of the study again to rewrite it"
    )


def _saved_plan(
    study: Path, row: dict[str, Any], member: dict[str, Any], words: DataFolder
) -> tuple[Plan, str]:
    """Return the plan and the problem of a member from its entry in `table.json`."""
    # The study may have been moved.
    _, _, inside = member["run"].rpartition(f"{MEMBERS}/")
    run, problem = RunFolder(study / MEMBERS / inside), member["problem"]
    if run.holds_a_run:
        config = run.config()
    elif problem:  # the member was not trained
        config = from_dict(Config, member["config"])
    else:
        raise ValueError(f"{run.path}: this run of the study is missing; restore it")
    is_of_words = config.batches.unit == "word"
    plan = Plan(
        label=row["model"],
        factorization=row["factorization"],
        config=config,
        data=words if is_of_words else open_bpe_data(words, "repeat the study without it"),
        run=run,
        memory=tuple(row["model"].split(MEMORY_MARK)[1:]),
    )
    return plan, problem


def _saved_member(
    plan: Plan, problem: str, words: DataFolder, splits: Sequence[str]
) -> StudyMember:
    versions, split = plan.run.versions(), plan.data.metadata.splits.get("train")
    if versions is not None and split is not None and versions.latest.text != split.sha256:
        raise ValueError(
            f"{plan.run.path}: trained on another text (of {versions.latest.data}) than "
            f"{plan.data.path}; use the data folder of the study"
        )
    scored = None if problem else saved_scores(plan.run.path, plan.data, splits, plan.memory)
    return make_member(plan, words, splits[-1], scored=scored, problem=problem)


def _all_seeds(members: Sequence[StudyMember]) -> list[StudyMember]:
    """Return one member per model and seed. One without a result is replaced by one that has it."""
    chosen: dict[tuple[str, int], StudyMember] = {}
    for member in members:
        other = chosen.setdefault((member.label, member.seed), member)
        if other is member or member.problem:
            continue
        if not other.problem:
            raise ValueError(
                f"{member.run}: same model and seed as {other.run}; combine studies with "
                "different seeds (zipflm compare ... training.seed=2)"
            )
        chosen[member.label, member.seed] = member
    return list(chosen.values())


def _require_same_study(saved: Sequence[_SavedStudy], members: Sequence[StudyMember]) -> None:
    """Raise ValueError unless the studies have the same models, and differ only in their seeds."""
    first = saved[0]
    for study in saved[1:]:
        for name in ("preset", "recipe", "held equal", "tuned"):
            ours, theirs = study.about(name), first.about(name)
            if ours != theirs:
                raise ValueError(
                    f"{study.path}: {name}: {ours or 'none'}, but {theirs or 'none'} in "
                    f"{first.path}; combine studies of the same command"
                )
    can_differ = {"training.seed", *RESULT_NEUTRAL}
    if first.about("held equal").startswith("seconds"):  # depends on the speed of the machine
        can_differ |= {"training.max_updates"}
        can_differ |= {"training.schedule.warmup_updates", "training.schedule.first_cycle"}
    firsts: dict[str, StudyMember] = {}
    for member in members:
        other = firsts.setdefault(member.label, member)
        for key, ours, theirs in different_settings(member.config, other.config):
            if key not in can_differ:
                raise ValueError(
                    f"{member.run}: {key}={ours}, but {theirs} in {other.run}; combine studies "
                    "with the same settings"
                )
    present = {(member.label, member.seed) for member in members}
    for label, seed in product(firsts, sorted({member.seed for member in members})):
        if (label, seed) not in present:
            raise ValueError(
                f"{label}: no study has it with seed {seed}; combine studies of the same models"
            )


def _joined_protocol(
    saved: Sequence[_SavedStudy], members: Sequence[StudyMember]
) -> dict[str, str]:
    """Return the protocol of all studies: all different values of every entry."""
    names = dict.fromkeys(name for study in saved for name in study.header.protocol)
    values = {name: dict.fromkeys(filter(None, (s.about(name) for s in saved))) for name in names}
    seeds = ", ".join(str(seed) for seed in sorted({member.seed for member in members}))
    return {name: "; ".join(texts) for name, texts in values.items()} | {"seeds": seeds}


def _joined_tried(saved: Sequence[_SavedStudy]) -> list[Tried]:
    """Return the tuning results of all studies; with several, the seed is added to the settings."""
    return [
        replace(tried, setting=f"{tried.setting} (seed {study.about('seeds').split(',')[0]})")
        if len(saved) > 1
        else tried
        for study in saved
        for tried in study.header.tried
    ]
