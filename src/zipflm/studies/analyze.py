"""`zipflm report`: write a report on existing runs, or on studies whose seeds it combines.

A report on studies needs no weights, only `table.json`, the data folder, and the config, log,
versions and saved scores of every member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.distributed import processes
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.field_help import fields_of
from zipflm.messages import read_file
from zipflm.presets import FACTORIZATIONS
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import Choice, RunFolder, locate
from zipflm.runs.load import load_run
from zipflm.settings import from_dict, load_object
from zipflm.storage import report_full_disk, sole_writer
from zipflm.studies.compare import FULL_DISK_REMEDY, scored_splits, split_text
from zipflm.studies.members import StudyMember, make_member, saved_scores, score_run
from zipflm.studies.paper import GPUS, comparison_row
from zipflm.studies.plan import (
    MEMBERS,
    MEMORY_MARK,
    RESULT_NEUTRAL,
    Plan,
    open_bpe_data,
    open_words,
    require_comparable,
)
from zipflm.studies.protocol import describe_data
from zipflm.studies.report import TABLE, require_report_folder, write_report
from zipflm.studies.study import ContextScore, Study, Tried, build_study
from zipflm.units import perplexity


def is_study(path: Path) -> bool:
    """Return whether a folder contains the report and the members of a study."""
    return (path / TABLE).is_file() and (path / MEMBERS).is_dir()


def redraw(studies: Sequence[Path], data: Path, out: Path) -> Study:
    """Rebuild a study from the folders of one or more studies with different seeds, and write its
    report to `out`. Title and protocol are those of the first."""
    words = open_words(data)
    splits = scored_splits(words)
    with sole_writer(out):
        require_report_folder(out)
        saved = [_saved_study(study, words, splits) for study in studies]
        members = [member for _, own_members in saved for member in own_members]
        _require_other_seeds(members)
        fields = saved[0][0]
        seeds = ", ".join(str(seed) for seed in sorted({member.seed for member in members}))
        fields["protocol"] |= {"seeds": seeds}
        redrawn = build_study(members, split_text(words, splits[-1]), **fields)
        write_report(redrawn, out)
        return redrawn


def _saved_study(
    study: Path, words: DataFolder, splits: Sequence[str]
) -> tuple[dict[str, Any], list[StudyMember]]:
    """Return the fields of a study that are not computed from its members, and the members."""
    table = load_object(read_file(study / TABLE))
    try:
        fields = {name: table[name] for name in ("title", "dataset", "protocol")}
        fields["tried"] = [from_dict(Tried, entry) for entry in table["tried"]]
        return fields, [
            _saved_member(study, row, member, words, splits)
            for row in table["rows"]
            for member in row["members"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{study / TABLE}: damaged or written by another version of zipflm ({error!r}); "
            "run the compare command of the study again to rewrite it"
        ) from None


def _require_other_seeds(members: Sequence[StudyMember]) -> None:
    """Raise ValueError unless members with the same label differ in their seed, and only in it."""
    by_label: dict[str, list[StudyMember]] = {}
    for member in members:
        for other in by_label.setdefault(member.label, []):
            if member.seed == other.seed:
                raise ValueError(
                    f"{member.run}: same model and seed as {other.run}; combine studies with "
                    "different seeds (zipflm compare ... training.seed=2)"
                )
            ours, theirs = _settings(member.config), _settings(other.config)
            for key in ours | theirs:
                if ours.get(key) != theirs.get(key):
                    raise ValueError(
                        f"{member.run}: {key}={ours.get(key)}, but {theirs.get(key)} in "
                        f"{other.run}; combine studies with the same settings"
                    )
        by_label[member.label].append(member)


def _settings(config: Config) -> dict[str, str]:
    """Return the settings that all seeds share. With equal seconds, the number of updates depends
    on the machine."""
    seed = ("training.seed", "training.max_updates")
    return {f.key: f.value for f in fields_of(config) if f.key not in (*RESULT_NEUTRAL, *seed)}


def _saved_member(
    study: Path,
    row: dict[str, Any],
    member: dict[str, Any],
    words: DataFolder,
    splits: Sequence[str],
) -> StudyMember:
    """Return a member from its entry in `table.json`."""
    # The study may have been moved.
    _, _, inside = member["run"].rpartition(f"{MEMBERS}/")
    run, problem = RunFolder(study / MEMBERS / inside), member["problem"]
    if run.holds_a_run:
        config = run.config()
    elif problem:  # the member was not trained
        config = from_dict(Config, member["config"])
    else:
        raise ValueError(f"{run.path}: this run of the study is missing; restore it")
    data = words
    if config.batches.unit != "word":
        data = open_bpe_data(words, "repeat the study without these models")
    plan = Plan(
        label=row["model"], factorization=row["factorization"], config=config, data=data, run=run
    )
    memory = tuple(row["model"].split(MEMORY_MARK)[1:])
    scored = None if problem else saved_scores(run.path, data, splits, memory)
    return make_member(plan, words, splits[-1], scored=scored, problem=problem)


def analyze(
    runs: Sequence[Path],
    data: Path,
    out: Path,
    *,
    checkpoint: Choice | None = None,
    context_sizes: Sequence[int] = (),
    options: ScoringOptions | None = None,
) -> Study:
    """Score runs on the validation and test splits and write a report on them.

    Under torchrun, the processes share the work.
    """
    options = options or ScoringOptions()

    def open_all() -> tuple[DataFolder, list[tuple[Plan, Checkpoint]]]:
        words = open_words(data)
        scored_splits(words)
        opened_runs = _open_runs(runs, checkpoint, words)
        for plan, _ in opened_runs:  # an invalid context size is an error
            for size in context_sizes:
                replace(options, context=size).blocks(plan.config)
        return words, opened_runs

    with processes.started(options.device) as process:
        words, opened_runs = process.run_on_all(open_all)
        splits = scored_splits(words)
        with process.enter_on_first(sole_writer(out)):
            process.run_on_first(lambda: require_report_folder(out))
            members: list[StudyMember] = []
            contexts: list[ContextScore] = []
            for plan, chosen in opened_runs:
                member, scores = _score(plan, chosen, words, options, context_sizes, process)
                members.append(member)
                contexts += scores
            study = build_study(
                members,
                split_text(words, splits[-1]),
                title=f"{'1 run' if len(members) == 1 else f'{len(members)} runs'} on {words.path}",
                dataset=dataset_of_paper([plan.config for plan, _ in opened_runs]),
                protocol=describe_data(words),
                contexts=contexts,
            )
            if process.is_first:
                with report_full_disk(out, FULL_DISK_REMEDY):
                    write_report(study, out)
    return study


def _open_runs(
    paths: Sequence[Path], choice: Choice | None, words: DataFolder
) -> list[tuple[Plan, Checkpoint]]:
    """Open runs and their checkpoints.

    A run is labeled by its factorization (such as ADP-T) if no other run has the same one,
    else by the name of its folder.
    """
    located = [locate(path, choice) for path in paths]
    configs = [checkpoint.config() for _, checkpoint in located]
    for config in configs:
        require_comparable(config)
    kinds = [config.factorization(config.batches.unit) or config.name for config in configs]
    names = [
        kind if kinds.count(kind) == 1 and kind in FACTORIZATIONS else path.resolve().name
        for kind, path in zip(kinds, paths, strict=True)
    ]
    for name, path in zip(names, paths, strict=True):
        if names.count(name) > 1:
            raise ValueError(
                f"{path}: two runs are called {name}; give each run once, or rename a folder"
            )
    data = {"word": words}
    if any(config.batches.unit != "word" for config in configs):
        data["bpe"] = open_bpe_data(words, "leave out the subword runs")
    return [
        (
            Plan(
                label=name,
                factorization=kind,
                config=config,
                data=data[config.batches.unit],
                run=run,
            ),
            checkpoint,
        )
        for (run, checkpoint), config, name, kind in zip(
            located, configs, names, kinds, strict=True
        )
    ]


def dataset_of_paper(configs: Sequence[Config]) -> str:
    """Return the paper's dataset if all models are in its table, else an empty string."""

    def is_listed(config: Config, dataset: str) -> bool:
        row = comparison_row(dataset, config.factorization(config.batches.unit) or "")
        return row is not None and row.matches(config.num_params())

    return next((name for name in GPUS if all(is_listed(c, name) for c in configs)), "")


def _score(
    plan: Plan,
    checkpoint: Checkpoint,
    words: DataFolder,
    options: ScoringOptions,
    context_sizes: Sequence[int],
    share: processes.Process,
) -> tuple[StudyMember, list[ContextScore]]:
    """Score a run. Return it as a member, and its perplexities with each context size."""
    splits = scored_splits(words)
    run = share.run_on_all(lambda: load_run(checkpoint.path))
    member = make_member(
        plan, words, splits[-1], scored=score_run(run, plan.data, splits, options, share)
    )
    contexts = []
    for size in context_sizes:
        chosen = replace(options, context=size)
        scores = score_run(run, plan.data, splits, chosen, share).splits
        contexts.append(
            ContextScore(
                label=plan.label,
                train_block=plan.config.batches.block,
                block=chosen.blocks(plan.config).block,
                context=size,
                perplexity={s: perplexity(float(w.nll.mean())) for s, w in scores.items()},
            )
        )
    return member, contexts
