"""From a run folder to a `Member` of a study: what the model is, how it trained, how it scores."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipflm.config import Config
from zipflm.data.folder import DataFolder, SplitFacts
from zipflm.evaluation.evaluate import ScoringOptions, score_split
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.scoring import ALONE, Share
from zipflm.messages import require_file
from zipflm.runs.checkpoint import Checkpoint, has_checkpoint_name
from zipflm.runs.folder import RunFolder, curve_of
from zipflm.runs.load import LoadedRun, load_run
from zipflm.runs.records import LogLine, Report
from zipflm.settings import as_json, from_dict, load_object
from zipflm.storage import written_whole
from zipflm.studies.build import split_score
from zipflm.studies.study import CurvePoint, Member, Seen
from zipflm.training.throughput import flops_per_token

SCORES = "scores"
"""Folder inside a member's run folder that keeps what was scored."""

_ROUNDING = 1e-2
"""In nats."""


@dataclass(frozen=True)
class WordScores:
    """The loss of every word of a split, in the order of the text."""

    nll: NDArray[np.float64]
    protocol: ScoringProtocol


@dataclass(frozen=True)
class ScoredRun:
    """The scores of one checkpoint on several splits."""

    checkpoint: str
    splits: dict[str, WordScores]


@dataclass(frozen=True, kw_only=True)
class _Key:
    """What kept scores belong to."""

    checkpoint: str
    weights: str
    vocabulary: str
    text: str
    options: ScoringOptions
    """Without the device, which decides nothing but rounding errors."""


@dataclass(frozen=True, kw_only=True)
class _KeptFacts:
    key: _Key
    protocol: ScoringProtocol


def score_run(
    run: LoadedRun,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    share: Share = ALONE,
) -> ScoredRun:
    """Score splits of a data folder with a run that is loaded."""
    found = {split: _scored(run, data, split, options, share) for split in splits}
    return ScoredRun(run.checkpoint.name, found)


def score_once(
    run: Path,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    share: Share = ALONE,
) -> ScoredRun:
    """Score with a run's newest checkpoint; what was scored is kept in the run folder, and read
    from there while weights and text are the same. The model is loaded once, or not at all."""
    newest = share.done_by_all(lambda: RunFolder(run).choose("newest"))
    return score_checkpoint(run, newest, data, splits, options, share=share)


def score_checkpoint(
    run: Path,
    checkpoint: Checkpoint,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    *,
    keep: bool = True,
    share: Share = ALONE,
) -> ScoredRun:
    """The same with any checkpoint of a run; without `keep` nothing is written into its folder.

    Processes that share the work all get the scores, and the first one keeps them.
    """
    found: dict[str, WordScores] = {}
    loaded: LoadedRun | None = None
    for split in splits:
        path = _place(run, split)
        key = share.done_by_all(partial(_key, checkpoint, data, split, options))
        kept = _find_kept(path, key, data.split(split))
        # Where one of the processes has to score, all of them do.
        if any(share.all_values(kept is None)) or kept is None:
            loaded = loaded or share.done_by_all(lambda: load_run(checkpoint.path))
            kept = _scored(loaded, data, split, options, share)
            if keep:
                first = share.rank == 0
                share.done_by_all(partial(_keep, path, key, kept) if first else lambda: None)
        found[split] = kept
    return ScoredRun(checkpoint.name, found)


def _key(checkpoint: Checkpoint, data: DataFolder, split: str, options: ScoringOptions) -> _Key:
    data.verify(split)
    return _Key(
        checkpoint=checkpoint.name,
        weights=checkpoint.weights_hash,
        vocabulary=data.vocabulary.hash,
        text=data.split(split).sha256,
        options=replace(options, device=None),
    )


def _place(run: Path, split: str) -> Path:
    return run / SCORES / f"{split}.npz"


def kept_scores(run: Path, data: DataFolder, splits: Sequence[str]) -> ScoredRun:
    """Scores of a run whose weights need not be there any more; ValueError if they were not kept,
    or are of another text."""
    found: dict[str, WordScores] = {}
    names = set()
    for split in splits:
        data.verify(split)
        path, text = _place(run, split), data.split(split)
        try:
            key, scores = _read_kept(path, text)
        except Exception as error:  # zipfile and NumPy have a dozen ways to say it is damaged
            raise ValueError(f"{path}: no scores that can be read ({error})") from None
        if (key.text, key.vocabulary) != (text.sha256, data.vocabulary.hash):
            raise ValueError(f"{path}: scores of another text or vocabulary than {data.path} has")
        names.add(key.checkpoint)
        found[split] = scores
    if len(names) != 1:
        raise ValueError(f"{run / SCORES}: scores of different checkpoints: {', '.join(names)}")
    return ScoredRun(names.pop(), found)


def _scored(
    run: LoadedRun, data: DataFolder, split: str, options: ScoringOptions, share: Share
) -> WordScores:
    scores = score_split(run, data, split, options, share=share).scores
    return WordScores(scores.words(), scores.protocol)


def _keep(path: Path, key: _Key, scores: WordScores) -> None:
    path.parent.mkdir(exist_ok=True)
    facts = as_json(_KeptFacts(key=key, protocol=scores.protocol))
    with written_whole(path) as unfinished:
        np.savez(unfinished, nll=scores.nll, facts=np.array(facts))


def _find_kept(path: Path, key: _Key, split: SplitFacts) -> WordScores | None:
    """None if there are none, or those of other weights or another text, or damaged ones."""
    try:
        held, scores = _read_kept(path, split)
    except Exception:  # zipfile and NumPy have a dozen ways to say that a file is damaged
        return None
    return scores if held == key else None


def _read_kept(path: Path, split: SplitFacts) -> tuple[_Key, WordScores]:
    require_file(path)
    # NumPy compares the checksums of the archive.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        facts, nll = from_dict(_KeptFacts, load_object(str(archive["facts"]))), archive["nll"]
    counts = (facts.protocol.tokens, facts.protocol.words, facts.protocol.unk)
    is_of_split = counts == (split.tokens, split.words, split.unknown)
    if not is_of_split or nll.dtype != np.float64 or nll.shape != (split.words,):
        raise ValueError("damaged: no losses of that split")
    # A probability may come out above 1 by a rounding error.
    if not np.isfinite(nll).all() or nll.min() < -_ROUNDING:
        raise ValueError("damaged: losses that are none")
    return facts.key, WordScores(nll, facts.protocol)


def make_member(
    run: RunFolder,
    config: Config,
    *,
    label: str,
    factorization: str,
    scored: ScoredRun | None,
    words: DataFolder,
    data: DataFolder,
    split: str,
    problem: str = "",
) -> Member:
    """A member from its run folder and its scores on the words of the folder `words`; `data` is
    the folder that it was trained on, the same one or its sub-word twin.

    Curve, time and speed are of the training up to the checkpoint that was scored.
    """
    input, output = config.describe(config.batches.unit)
    log = _log_until(run, scored)
    reports = [line for line in log if isinstance(line, Report)]
    scores = scored.splits if scored else {}
    return Member(
        label=label,
        factorization=factorization,
        seed=config.training.seed,
        run=str(run.path),
        checkpoint=scored.checkpoint if scored else None,
        input=input,
        output=output,
        params=config.params_by_part(),
        scores={
            name: split_score(found.nll, np.asarray(words.tokens(name).ids), found.protocol)
            for name, found in scores.items()
        },
        nll=scores[split].nll if split in scores else None,
        curve=curve(log),
        seen=_seen(reports[-1], config, data) if reports else None,
        seconds=training_seconds(reports[-1]) if reports else None,
        cpu_seconds=reports[-1].cpu_seconds if reports else None,
        compile_seconds=reports[-1].compile_seconds if reports else None,
        # The median, which compiling the model does not touch.
        tokens_per_second=(
            statistics.median(report.tokens_per_second for report in reports) if reports else None
        ),
        memory=max((report.memory for report in reports), default=None),
        compiled=_compiled(reports),
        config=config,
        versions=run.versions(),
        problem=problem,
    )


def _log_until(run: RunFolder, scored: ScoredRun | None) -> list[LogLine]:
    """What was logged before the scored checkpoint was saved; all of it if nothing was scored."""
    log = run.log()
    # One that was copied out of its run may be called anything.
    if scored is None or not has_checkpoint_name(Path(scored.checkpoint)):
        return log
    last = Checkpoint(Path(scored.checkpoint)).update
    return [line for line in log if line.update <= last]


def curve(log: Sequence[LogLine]) -> tuple[CurvePoint, ...]:
    """Losses per word, of whatever tokens a model is made."""
    updates = sorted({line.update for line in log})
    reports = {line.update: line for line in log if isinstance(line, Report)}
    validations = {line.update: line for line in curve_of(log)}
    points: list[CurvePoint] = []
    compiling = 0.0  # as the last report has it
    for update in updates:
        report, validation = reports.get(update), validations.get(update)
        seconds = [line.seconds for line in (report, validation) if line is not None]
        if report is not None:
            compiling = report.compile_seconds
        points.append(
            CurvePoint(
                update=update,
                seconds=max(0.0, seconds[0] - compiling),
                loss=report.nats_per_word if report else None,
                valid_loss=validation.nats_per_word if validation else None,
            )
        )
    return tuple(points)


def training_seconds(report: Report) -> float:
    """Spent training so far, without compilation, which depends on what the compiler has cached."""
    return max(0.0, report.seconds - report.compile_seconds)


def _seen(last: Report, config: Config, data: DataFolder) -> Seen | None:
    """None for a run whose training text is not in the folder."""
    if "train" not in data.splits:
        return None
    text = data.split("train")
    per_token = flops_per_token(config, data.vocabulary.counts, last.block)
    return Seen(
        updates=last.update,
        words=round(last.epoch * text.words),
        passes=last.epoch,
        operations=last.epoch * text.tokens * per_token,
    )


def _compiled(reports: Sequence[Report]) -> bool | None:
    """False if the model ran uncompiled at any time although it should not have."""
    known = {report.compiled for report in reports if report.compiled is not None}
    return all(known) if known else None
