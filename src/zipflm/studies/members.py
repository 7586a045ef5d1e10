"""Build the members of a study from run folders, logs and scores."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zipflm.config import Config
from zipflm.data.folder import DataFolder, SplitMetadata
from zipflm.data.vocabulary import UNKNOWN
from zipflm.distributed.processes import SINGLE_PROCESS, Process
from zipflm.evaluation.evaluate import ScoringOptions, score_split
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.streaming import streaming_speed
from zipflm.memory.specs import CACHE_FILE
from zipflm.messages import read_file, require_file
from zipflm.runs.checkpoint import Checkpoint, has_checkpoint_name
from zipflm.runs.folder import RunFolder, curve_of
from zipflm.runs.load import LoadedRun, load_run
from zipflm.runs.records import LogLine, Report, Versions
from zipflm.settings import from_dict, load_object, to_dict
from zipflm.storage import atomic_write, atomic_write_text, file_hash
from zipflm.studies.bins import FloatArray, IntArray
from zipflm.studies.plan import Plan, path_name, training_seconds
from zipflm.units import LARGEST_LOSS, perplexity

SCORES = "scores"
"""Subfolder of a run with its saved scores."""
_STREAMING = "streaming.json"
_ROUNDING = 1e-2
"""In nats. Rounding errors can make a loss slightly negative."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A point on a learning curve; losses in nats per word."""

    update: int
    seconds: float
    """Training time, without compilation."""
    loss: float | None = None
    valid_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class SplitScore:
    """Losses of a model on one split."""

    loss: float
    """Mean nll in nats per word."""
    known_loss: float
    """The same without unknown words, which subword models predict piece by piece."""
    protocol: ScoringProtocol

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)

    @property
    def known_perplexity(self) -> float:
        return perplexity(self.known_loss)


@dataclass(frozen=True, kw_only=True)
class StudyMember:
    """One trained model with one seed."""

    label: str
    """Label of the row in the report: the factorization, with the decoder, bands, tail dropout or
    memory if the study compares them, or the name of the run folder."""
    factorization: str
    run: str
    checkpoint: str | None
    """The scored checkpoint; None without a result."""
    config: Config
    scores: Mapping[str, SplitScore] = field(default_factory=dict)
    """By split; empty without a result."""
    nll: FloatArray | None = None
    """Loss of every word of the analyzed split."""
    curve: tuple[CurvePoint, ...] = ()
    updates: int | None = None
    words_seen: int | None = None
    """Running words of the training text, even for subword models. Repeated words count again."""
    seconds: float | None = None
    """Training time, without compilation."""
    cpu_seconds: float | None = None
    """CPU time of the training thread, without compilation; None on a GPU or with several
    processes."""
    compile_seconds: float | None = None
    tokens_per_second: float | None = None
    streaming_words_per_second: float | None = None
    """Speed of scoring word by word on a CPU, if measured."""
    memory: int | None = None
    """Peak memory in bytes."""
    compiled: bool | None = None
    """Whether all updates ran compiled; None without compilation."""
    versions: Versions | None = None
    """None for imported models."""
    problem: str = ""
    """Why the member has no result, or an empty string."""

    @property
    def seed(self) -> int:
        return self.config.training.seed


@dataclass(frozen=True)
class WordScores:
    """The loss of every word of a split, in text order."""

    nll: FloatArray
    protocol: ScoringProtocol


@dataclass(frozen=True)
class ScoredRun:
    checkpoint: str
    splits: dict[str, WordScores]


def score_run(
    run: LoadedRun,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    process: Process = SINGLE_PROCESS,
) -> ScoredRun:
    by_split = {}
    for split in splits:
        scores = score_split(run, data, split, options, process=process).scores
        by_split[split] = WordScores(scores.words(), scores.protocol)
    return ScoredRun(run.checkpoint.name, by_split)


def score_once(
    run: Path,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    process: Process = SINGLE_PROCESS,
) -> ScoredRun:
    """Score splits with the newest checkpoint of a run, and save the scores in the run folder.

    Saved scores of the same checkpoint, text and options are read instead.
    """
    checkpoint = process.run_on_all(lambda: RunFolder(run).choose("newest"))
    by_split: dict[str, WordScores] = {}
    loaded: LoadedRun | None = None
    for split in splits:
        path = _scores_path(run, split, options.memory)
        key = process.run_on_all(partial(_key, run, checkpoint, data, split, options))
        saved = _find_saved(path, key, data.split(split))
        # If one process has no saved scores, all of them score.
        if any(process.all_gather(saved is None)) or saved is None:
            loaded = loaded or process.run_on_all(lambda: load_run(checkpoint.path))
            saved = score_run(loaded, data, [split], options, process).splits[split]
            process.run_on_first(partial(_save, path, key, saved))
        by_split[split] = saved
    return ScoredRun(checkpoint.name, by_split)


def saved_scores(
    run: Path, data: DataFolder, splits: Sequence[str], memory: tuple[str, ...] = ()
) -> ScoredRun:
    """Read the saved scores of a run. Raises ValueError if they are missing, damaged, or those of
    another text."""
    by_split: dict[str, WordScores] = {}
    names = set()
    for split in splits:
        data.verify(split)
        path, text = _scores_path(run, split, memory), data.split(split)
        try:
            key, scores = _read_saved(path, text)
        except Exception as error:  # zipfile and NumPy raise many kinds of errors
            raise ValueError(
                f"{path}: cannot read these scores ({error}); use the data folder of the study, or "
                "run its compare command again"
            ) from None
        if (key["text"], key["vocabulary"]) != (text.sha256, data.vocabulary.hash):
            raise ValueError(
                f"{path}: its text or vocabulary differs from {data.path}; use the data folder of "
                "the study"
            )
        names.add(key["checkpoint"])
        by_split[split] = scores
    if len(names) != 1:
        raise ValueError(f"{run / SCORES}: scores of different checkpoints: {', '.join(names)}")
    return ScoredRun(names.pop(), by_split)


def _scores_path(run: Path, split: str, memory: tuple[str, ...]) -> Path:
    return run / SCORES / f"{'-'.join([split, *map(path_name, memory)])}.npz"


def _key(
    run: Path, checkpoint: Checkpoint, data: DataFolder, split: str, options: ScoringOptions
) -> dict[str, Any]:
    """Return the values that identify saved scores. The device only affects rounding, so it is left
    out."""
    data.verify(split)
    return {
        "checkpoint": checkpoint.name,
        "weights": checkpoint.weights_hash,
        "vocabulary": data.vocabulary.hash,
        "text": data.split(split).sha256,
        "options": to_dict(replace(options, device=None)),
    } | ({"tuned": _tuned_cache(run)} if options.memory else {})


def _tuned_cache(run: Path) -> str:
    """Return the hash of the settings that `zipflm memory tune` wrote for a run, if any."""
    path = run / CACHE_FILE
    return file_hash(path) if path.is_file() else ""


def _save(path: Path, key: dict[str, Any], scores: WordScores) -> None:
    path.parent.mkdir(exist_ok=True)
    metadata = json.dumps({"key": key, "protocol": to_dict(scores.protocol)})
    with atomic_write(path) as unfinished:
        np.savez(unfinished, nll=scores.nll, metadata=np.array(metadata))


def _find_saved(path: Path, key: dict[str, Any], split: SplitMetadata) -> WordScores | None:
    """Read scores with this key. Returns None if they are missing, damaged or have another key."""
    try:
        saved_key, scores = _read_saved(path, split)
    except Exception:  # zipfile and NumPy raise many kinds of errors
        return None
    return scores if saved_key == key else None


def _read_saved(path: Path, split: SplitMetadata) -> tuple[dict[str, Any], WordScores]:
    require_file(path)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        metadata, nll = load_object(str(archive["metadata"])), archive["nll"]
    protocol = from_dict(ScoringProtocol, metadata["protocol"])
    counts = (protocol.tokens, protocol.words, protocol.unk)
    matches = counts == (split.tokens, split.words, split.unknown)
    if not matches or nll.dtype != np.float64 or nll.shape != (split.words,):
        raise ValueError("damaged, or the scores of another split")
    if not np.isfinite(nll).all() or nll.min() < -_ROUNDING:
        raise ValueError("damaged: contains invalid losses")
    return metadata["key"], WordScores(nll, protocol)


def make_member(
    plan: Plan, words: DataFolder, split: str, *, scored: ScoredRun | None, problem: str = ""
) -> StudyMember:
    """Build a member from its run folder and its scores.

    `words` is the data folder of words, even for subword models; the member gets the `nll` of
    `split`. Curve, time and speed are those of training up to the scored checkpoint.
    """
    log = _log_until(plan.run, scored)
    reports = [line for line in log if isinstance(line, Report)]
    scores = scored.splits if scored else {}
    return StudyMember(
        label=plan.label,
        factorization=plan.factorization,
        run=str(plan.run.path),
        checkpoint=scored.checkpoint if scored else None,
        config=plan.config,
        scores={
            name: split_score(score.nll, np.asarray(words.tokens(name).ids), score.protocol)
            for name, score in scores.items()
        },
        nll=scores[split].nll if split in scores else None,
        curve=learning_curve(log),
        # The speed was measured without a memory.
        streaming_words_per_second=(
            None if plan.memory else _saved_streaming_speed(plan.run.path, scored)
        ),
        versions=plan.run.versions(),
        problem=problem,
        **(_training_statistics(reports, plan.data) if reports else {}),
    )


def _training_statistics(reports: Sequence[Report], data: DataFolder) -> dict[str, Any]:
    last = reports[-1]
    compiled = [report.compiled for report in reports if report.compiled is not None]
    has_text = "train" in data.splits
    return {
        "updates": last.update,
        "words_seen": round(last.epoch * data.split("train").words) if has_text else None,
        "seconds": training_seconds(last),
        "cpu_seconds": last.cpu_seconds,
        "compile_seconds": last.compile_seconds,
        # The median ignores the slow start while the model compiles.
        "tokens_per_second": statistics.median(report.tokens_per_second for report in reports),
        "memory": max(report.memory for report in reports),
        "compiled": all(compiled) if compiled else None,
    }


def measure_streaming(plan: Plan, scored: ScoredRun) -> None:
    """Measure and save the speed of scoring word by word on a CPU, unless it is already saved."""
    if _saved_streaming_speed(plan.run.path, scored) is not None:
        return
    split = next(iter(scored.splits))
    ids, text = np.asarray(plan.data.tokens(split).ids), plan.data.split(split)
    model = load_run(plan.run.choose("newest").path).model
    speed = streaming_speed(model, ids, plan.config.batches.eval_block)
    content = {
        "checkpoint": scored.checkpoint,
        "words_per_second": speed * text.words / text.tokens,
    }
    atomic_write_text(plan.run.path / SCORES / _STREAMING, json.dumps(content))


def _saved_streaming_speed(run: Path, scored: ScoredRun | None) -> float | None:
    try:
        content = load_object(read_file(run / SCORES / _STREAMING))
    except (OSError, ValueError):
        return None
    is_same = scored is not None and content.get("checkpoint") == scored.checkpoint
    return float(content["words_per_second"]) if is_same else None


def split_score(nll: FloatArray, word_ids: IntArray, protocol: ScoringProtocol) -> SplitScore:
    """Return the mean loss of a split, with and without unknown words.

    Raises ValueError if the perplexity would be infinite.
    """
    known = word_ids != UNKNOWN
    known_loss = float(np.mean(nll[known], dtype=np.float64)) if known.any() else math.nan
    loss = float(np.mean(nll, dtype=np.float64))
    if max(loss, known_loss) >= LARGEST_LOSS:
        raise ValueError(
            f"training diverged: a mean loss of {loss:.3g} nats per word, an infinite perplexity; "
            "lower the learning rate"
        )
    return SplitScore(loss=loss, known_loss=known_loss, protocol=protocol)


def _log_until(run: RunFolder, scored: ScoredRun | None) -> list[LogLine]:
    """Return the log up to the scored checkpoint, or all of it if nothing was scored."""
    log = run.log()
    # A checkpoint copied out of its run can have any name.
    if scored is None or not has_checkpoint_name(Path(scored.checkpoint)):
        return log
    last = Checkpoint(Path(scored.checkpoint)).update
    return [line for line in log if line.update <= last]


def learning_curve(log: Sequence[LogLine]) -> tuple[CurvePoint, ...]:
    """Return the learning curve of a log, in nats per word for all models."""
    reports = {line.update: line for line in log if isinstance(line, Report)}
    validations = {line.update: line for line in curve_of(log)}
    points: list[CurvePoint] = []
    compile_seconds = 0.0
    for update in sorted({*reports, *validations}):
        report, validation = reports.get(update), validations.get(update)
        seconds = [line.seconds for line in (report, validation) if line is not None]
        if report is not None:
            compile_seconds = report.compile_seconds
        points.append(
            CurvePoint(
                update=update,
                seconds=max(0.0, seconds[0] - compile_seconds),
                loss=report.nats_per_word if report else None,
                valid_loss=validation.nats_per_word if validation else None,
            )
        )
    return tuple(points)
