"""`zipflm report`: a report from runs that exist, or again from what a study keeps.

To write a report again no model is loaded: it takes `table.json` and the config, log and scores of
every member, so a study trained on one machine can be reported on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.evaluation.scoring import Share
from zipflm.messages import read_file
from zipflm.presets import DATASETS, FACTORIZATIONS, preset
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import Choice, RunFolder, locate
from zipflm.runs.load import load_run
from zipflm.settings import from_dict, load_object
from zipflm.storage import naming_full_disk, sole_writer
from zipflm.studies.build import build
from zipflm.studies.compare import (
    FULL_DISK_REMEDY,
    PROTOCOL_FACTS,
    FinishedStudy,
    run_plans,
    scored_splits,
    scored_text,
)
from zipflm.studies.members import kept_scores, make_member, score_checkpoint, score_run
from zipflm.studies.plan import (
    MEMBERS,
    Plan,
    open_twin,
    open_words,
    require_comparable,
    require_seeds,
    seeded,
    variations,
)
from zipflm.studies.report import TABLE, claim, write_report
from zipflm.studies.study import ContextScore, Member, Study, Tried
from zipflm.training import distributed
from zipflm.units import perplexity


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


# What a decoder of the paper computes. The authors' code has other heads, rates and first weights
# than the paper says for the same rows.
_DECODER_KIND = ("dim", "num_layers", "ffn_dim", "positions", "qk_norm", "activation", "norm")


@dataclass(frozen=True)
class _Analysed:
    """One run: which checkpoint of it, on what data, under what name."""

    run: RunFolder
    checkpoint: Checkpoint
    config: Config
    data: DataFolder
    label: str
    factorization: str


def analyse(
    runs: Sequence[Path],
    data: Path,
    out: Path,
    *,
    checkpoint: Choice | None = None,
    context_sizes: Sequence[int] = (),
    options: ScoringOptions | None = None,
) -> Study:
    """Score the runs on every held-out split and write their report; under torchrun each process
    scores a share of the text, and the first one writes."""
    options = options or ScoringOptions()

    def opened() -> tuple[DataFolder, list[_Analysed]]:
        words = open_words(data)
        scored_splits(words)
        analysed = _open(runs, checkpoint, words)
        for run in analysed:
            _require_room(run, context_sizes, options)
        return words, analysed

    with distributed.started(options.device) as process:
        words, analysed = process.done_by_all(opened)
        splits = scored_splits(words)
        with process.held_by_first(sole_writer(out)):
            process.let_first(lambda: claim(out, "analysis"))
            members: list[Member] = []
            contexts: list[ContextScore] = []
            for run in analysed:
                member, more = _scored(run, words, splits, options, context_sizes, process)
                members.append(member)
                contexts += more
            study = build(
                members,
                scored_text(words, splits[-1]),
                title=f"{'1 run' if len(members) == 1 else f'{len(members)} runs'} on {words.path}",
                dataset=_dataset(analysed),
                facts={
                    "data": f"a vocabulary of {len(words.vocabulary):,} words",
                    "folder": str(words.path),
                    "vocabulary": words.vocabulary.hash,
                }
                | PROTOCOL_FACTS,
            )
            study = replace(study, contexts=tuple(contexts))
            if process.is_first:
                with naming_full_disk(out, FULL_DISK_REMEDY):
                    write_report(study, out, "analysis")
    return study


def ablate(
    run: Path,
    data: Path,
    out: Path,
    *,
    bands: Sequence[str],
    tail_dropout: Sequence[float],
    checkpoint: Choice | None = None,
    seeds: int = 1,
    device: str | None = None,
) -> FinishedStudy:
    """A study of a run's own model under every setting, trained as the run was."""

    def opened() -> tuple[DataFolder, _Analysed, list[Plan]]:
        words = open_words(data)
        scored_splits(words)
        (base,) = _open([run], checkpoint, words)
        require_seeds(seeds)
        plans: list[Plan] = []
        # All settings are trained equally long.
        config = replace(base.config, training=replace(base.config.training, patience=0))
        for variation in variations(bands, tail_dropout):
            plans += seeded(
                variation.apply(config),
                seeds,
                label=f"{base.factorization} {variation.name}",
                factorization=base.factorization,
                data=base.data,
                out=out,
            )
        return words, base, plans

    with distributed.started(device) as process:
        words, base, plans = process.done_by_all(opened)
        options = ScoringOptions(device=device)
        member, _ = _scored(base, words, scored_splits(words), options, (), process)
        return run_plans(
            plans,
            words,
            out,
            title=f"Settings of {base.label}",
            dataset=_dataset([base]),
            facts={"base": str(run)},
            device=device,
            others=[member],
            maker="ablation",
        )


def _open(paths: Sequence[Path], choice: Choice | None, words: DataFolder) -> list[_Analysed]:
    """Configs and data of runs; a label is the factorization where only one run has it."""
    found = [locate(path, choice) for path in paths]
    configs = [checkpoint.config() for _, checkpoint in found]
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
                f"{path}: another run is called {name} as well; give their folders different names"
            )
    data = {"word": words}
    if any(config.batches.unit != "word" for config in configs):
        data["bpe"] = open_twin(words, "leave out the runs of sub-words")
    return [
        _Analysed(run, checkpoint, config, data[config.batches.unit], name, kind)
        for (run, checkpoint), config, name, kind in zip(found, configs, names, kinds, strict=True)
    ]


def _dataset(runs: Sequence[_Analysed]) -> str:
    """The paper's dataset of which all of them are models, to show its rows beside them; empty if
    there is none."""
    for name, dataset in DATASETS.items():
        if dataset.is_of_the_paper and all(_is_model_of(run, name) for run in runs):
            return name
    return ""


def _is_model_of(run: _Analysed, dataset: str) -> bool:
    """By what it is, since a run may be called anything: a model of the same kind, size and
    decoder. The larger ones are not in the tables that are shown."""
    if run.factorization not in FACTORIZATIONS:
        return False
    ours, theirs = run.config, preset(dataset, run.factorization)
    return ours.num_params() == theirs.num_params() and all(
        getattr(ours.decoder, name) == getattr(theirs.decoder, name) for name in _DECODER_KIND
    )


def _scored(
    run: _Analysed,
    words: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    context_sizes: Sequence[int],
    share: Share,
) -> tuple[Member, list[ContextScore]]:
    """A run as a member, and its perplexity with each context; its model is loaded once, or not at
    all where nothing but kept scores is needed."""
    is_newest = [c.path for c in run.run.checkpoints()[:1]] == [run.checkpoint.path]
    loaded = None
    if not is_newest or context_sizes:
        loaded = share.done_by_all(lambda: load_run(run.checkpoint.path))
    member = make_member(
        run.run,
        run.config,
        label=run.label,
        factorization=run.factorization,
        scored=(
            score_checkpoint(
                run.run.path, run.checkpoint, run.data, splits, options, keep=False, share=share
            )
            if loaded is None
            else score_run(loaded, run.data, splits, options, share)
        ),
        words=words,
        data=run.data,
        split=splits[-1],
    )
    contexts = []
    # In windows as long as the block that the run is scored in.
    block = options.blocks(run.config).block
    for size in context_sizes:
        assert loaded is not None
        chosen = replace(options, block=block, context=size)
        scored = score_run(loaded, run.data, splits, chosen, share)
        contexts.append(
            ContextScore(
                label=run.label,
                train_block=run.config.batches.block,
                block=block,
                context=size,
                perplexity={
                    split: perplexity(float(scores.nll.mean()))
                    for split, scores in scored.splits.items()
                },
            )
        )
    return member, contexts


def _require_room(run: _Analysed, sizes: Sequence[int], options: ScoringOptions) -> None:
    """ValueError, before anything is scored, for a context that leaves nothing to score."""
    block = options.blocks(run.config).block
    for size in sizes:
        if not 0 <= size < block:
            raise ValueError(
                f"--context-sizes {size}: must leave room for scored tokens in the block "
                f"of {block} that {run.run.path} is scored in; give 0 to {block - 1}, or another "
                "--block"
            )
