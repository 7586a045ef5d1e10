"""`zipflm analyse`: bins, figures and word lists of runs that are already there.

With `context_sizes` also the paper's table of training block against context at inference; with
`bands` or `tail_dropout` the run is the base of an ablation, whose members are trained first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from zipflm.analysis.report import make_writable, write_report
from zipflm.analysis.study import ContextScore, Member, Study, build
from zipflm.comparison.compare import (
    FULL_DISK_REMEDY,
    PROTOCOL_FACTS,
    Outcome,
    run_plans,
    scored_splits,
    scored_text,
)
from zipflm.comparison.plan import Plan, open_twin, open_words, seeded, settings
from zipflm.comparison.runs import WordScores, make_member, score_run
from zipflm.config import Config
from zipflm.data.folder import DataFolder, naming_full_disk
from zipflm.evaluation.evaluate import Setting
from zipflm.evaluation.run import checkpoint_folder
from zipflm.overrides import from_dict
from zipflm.presets import FACTORIZATIONS
from zipflm.training.checkpoint import read_json


@dataclass(frozen=True)
class _Run:
    path: Path
    config: Config
    data: DataFolder
    label: str
    factorization: str


def analyse(
    runs: Sequence[Path],
    data: Path,
    out: Path,
    *,
    context_sizes: Sequence[int] = (),
    setting: Setting | None = None,
) -> Study:
    """Score the runs on every held-out split and write their report."""
    words = open_words(data)
    splits = scored_splits(words)
    setting = setting or Setting()
    opened = _open(runs, words)
    for run in opened:
        _require_room(run, context_sizes, setting)
    make_writable(out)
    members = [_member(run, words, splits, setting) for run in opened]
    study = build(
        members,
        scored_text(words, splits[-1]),
        title=f"{'1 run' if len(members) == 1 else f'{len(members)} runs'} on {words.path}",
        dataset=_dataset(opened),
        facts={
            "data": f"a vocabulary of {len(words.vocabulary):,} words",
            "folder": str(words.path),
            "vocabulary": words.vocabulary.hash,
        }
        | PROTOCOL_FACTS,
    )
    contexts = [
        context for run in opened for context in _contexts(run, context_sizes, splits, setting)
    ]
    study = replace(study, contexts=tuple(contexts))
    with naming_full_disk(out, FULL_DISK_REMEDY):
        write_report(study, out)
    return study


def ablate(
    run: Path,
    data: Path,
    out: Path,
    *,
    bands: Sequence[str],
    tail_dropout: Sequence[float],
    seeds: int = 1,
    device: str | None = None,
) -> Outcome:
    """A study of a run's own model under every setting, trained as the run was."""
    words = open_words(data)
    (base,) = _open([run], words)
    plans: list[Plan] = []
    for setting in settings(bands, tail_dropout):
        plans += seeded(
            setting.change(base.config),
            seeds,
            label=f"{base.factorization} {setting.name}",
            factorization=base.factorization,
            data=base.data.path,
            out=out,
        )
    return run_plans(
        plans,
        data,
        out,
        title=f"Settings of {base.label}",
        dataset=_dataset([base]),
        facts={"base": str(run)},
        device=device,
        others=[_member(base, words, scored_splits(words), Setting(device=device))],
    )


def _open(paths: Sequence[Path], words: DataFolder) -> list[_Run]:
    """Configs and data of runs; a label is the factorization where only one run has it."""
    configs = [
        from_dict(Config, read_json(checkpoint_folder(path) / "config.json")) for path in paths
    ]
    kinds = [_factorization(config) for config in configs]
    names = [
        kind if kinds.count(kind) == 1 and kind in FACTORIZATIONS else path.resolve().name
        for kind, path in zip(kinds, paths, strict=True)
    ]
    for name, path in zip(names, paths, strict=True):
        if names.count(name) > 1:
            raise ValueError(
                f"{path}: another run is called {name} as well; give their folders different names"
            )
    return [
        _Run(path, config, _data_of(config, words), name, kind)
        for path, config, name, kind in zip(paths, configs, names, kinds, strict=True)
    ]


def _factorization(config: Config) -> str:
    _, _, rest = config.name.partition("/")
    return rest.partition("/")[0] or config.name


def _data_of(config: Config, words: DataFolder) -> DataFolder:
    if config.batches.unit == "word":
        return words
    return open_twin(words, "leave out the runs of sub-words")


def _dataset(runs: Sequence[_Run]) -> str:
    """The preset they share, if they do: the paper's rows belong to one."""
    names = {run.config.name.partition("/")[0] for run in runs}
    return names.pop() if len(names) == 1 else ""


def _member(run: _Run, words: DataFolder, splits: Sequence[str], setting: Setting) -> Member:
    scores: dict[str, WordScores] = {
        split: score_run(run.path, run.data.path, split, setting) for split in splits
    }
    return make_member(
        run.path,
        run.config,
        run.data,
        label=run.label,
        factorization=run.factorization,
        scores=scores,
        words=words,
        split=splits[-1],
    )


def _contexts(
    run: _Run, sizes: Sequence[int], splits: Sequence[str], setting: Setting
) -> list[ContextScore]:
    """Perplexity of one run with each context, in windows as long as the block it is scored in."""
    block = _block(run, setting)
    found = []
    for size in sizes:
        chosen = replace(setting, block=block, context=size)
        perplexity = {}
        for split in splits:
            nll = score_run(run.path, run.data.path, split, chosen).nll
            perplexity[split] = float(torch.from_numpy(nll).mean().exp())
        found.append(
            ContextScore(
                label=run.label,
                train_block=run.config.batches.block,
                block=block,
                context=size,
                perplexity=perplexity,
            )
        )
    return found


def _block(run: _Run, setting: Setting) -> int:
    return setting.block or run.config.batches.eval_block


def _require_room(run: _Run, sizes: Sequence[int], setting: Setting) -> None:
    """ValueError, before anything is scored, for a context that leaves nothing to score."""
    block = _block(run, setting)
    for size in sizes:
        if not 0 <= size < block:
            raise ValueError(
                f"--context-sizes {size}: must leave room for scored tokens in the block of "
                f"{block} that {run.path} is scored in; give 0 to {block - 1}, or another --block"
            )
