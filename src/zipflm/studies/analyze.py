"""`zipflm report` on runs: score them and write a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.distributed import processes
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.presets import FACTORIZATIONS
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import Choice, locate
from zipflm.runs.load import load_run
from zipflm.storage import sole_writer
from zipflm.studies.members import StudyMember, make_member, score_run
from zipflm.studies.paper import GPUS, comparison_row
from zipflm.studies.plan import (
    Plan,
    open_bpe_data,
    open_words,
    require_comparable,
    scored_splits,
)
from zipflm.studies.protocol import describe_data
from zipflm.studies.report import require_report_folder, write_report
from zipflm.studies.study import ContextScore, Study, build_study, split_text
from zipflm.units import perplexity


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
    process: processes.Process,
) -> tuple[StudyMember, list[ContextScore]]:
    """Score a run. Return it as a member, and its perplexities with each context size."""
    splits = scored_splits(words)
    run = process.run_on_all(lambda: load_run(checkpoint.path))
    member = make_member(
        plan, words, splits[-1], scored=score_run(run, plan.data, splits, options, process)
    )
    contexts = []
    for size in context_sizes:
        chosen = replace(options, context=size)
        scores = score_run(run, plan.data, splits, chosen, process).splits
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
