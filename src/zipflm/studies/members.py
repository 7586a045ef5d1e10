"""From a run folder to a `StudyMember`: what the model is, how it trained, how it scores."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zipflm.config import Config
from zipflm.data.folder import DataFolder, SplitFacts
from zipflm.data.vocabulary import UNKNOWN
from zipflm.evaluation.evaluate import ScoringOptions, score_split
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.evaluation.scoring import ALONE, Share
from zipflm.evaluation.streaming import streaming_speed
from zipflm.messages import read_file, require_file
from zipflm.runs.checkpoint import Checkpoint, has_checkpoint_name
from zipflm.runs.folder import RunFolder, curve_of
from zipflm.runs.load import LoadedRun, load_run
from zipflm.runs.records import LogLine, Report, Versions
from zipflm.settings import from_dict, load_object, to_dict
from zipflm.storage import atomic_write, atomic_write_text
from zipflm.studies.bins import FloatArray, IntArray
from zipflm.studies.plan import Plan, path_name, training_seconds
from zipflm.training.throughput import flops_per_token
from zipflm.units import LARGEST_LOSS, perplexity

SCORES = "scores"
"""Folder inside a member's run folder that keeps what was scored."""
_STREAMING = "streaming.json"
_ROUNDING = 1e-2
"""In nats: a probability may come out above 1 by a rounding error."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One moment of a training run; losses in nats per word."""

    update: int
    seconds: float
    """Spent training until then, without compilation."""
    loss: float | None = None
    valid_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class SplitScore:
    """How a model does on one split."""

    loss: float
    """Mean nll in nats per word."""
    known_loss: float
    """The same without unknown words, which sub-word models must spell and others need not."""
    protocol: ScoringProtocol
    """What the number means."""

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)

    @property
    def known_perplexity(self) -> float:
        return perplexity(self.known_loss)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a model has seen of the training text, and what that took."""

    updates: int
    words: int
    """Of running text, with the end of each line; pieces count as the words they make up."""
    passes: float
    """Over the training text."""
    operations: float
    """Additions and multiplications of all updates, as the config's cost model has them."""


@dataclass(frozen=True, kw_only=True)
class StudyMember:
    """One trained model with one seed."""

    label: str
    """The row it belongs to: the factorization, with the setting where a study varies one."""
    factorization: str
    run: str
    checkpoint: str | None
    """The one that was scored; None for a member without a result."""
    config: Config
    scores: Mapping[str, SplitScore] = field(default_factory=dict)
    """By split; empty for a member without a result."""
    nll: FloatArray | None = None
    """Loss of every word of the split that is analysed."""
    curve: tuple[CurvePoint, ...] = ()
    seen: Seen | None = None
    seconds: float | None = None
    """Spent training, without compilation."""
    cpu_seconds: float | None = None
    """CPU time of the training thread in these seconds; None where it says nothing, as on a GPU."""
    compile_seconds: float | None = None
    tokens_per_second: float | None = None
    streaming_words_per_second: float | None = None
    """Words read one by one on a CPU, where that was measured."""
    memory: int | None = None
    """Peak, in bytes."""
    compiled: bool | None = None
    """Whether it ran compiled; None where that was not asked for, or is not known."""
    versions: Versions | None = None
    """None for a model that was trained elsewhere."""
    problem: str = ""
    """Why there is no result, for the row; empty where there is one."""

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def is_busy(self) -> bool:
        """Whether training took over a third more seconds than its thread had of the CPU. Alone on
        a machine the thread has the CPU nearly all the time, however many threads help it."""
        if self.seconds is None or self.cpu_seconds is None:
            return False
        return self.seconds > 4 / 3 * self.cpu_seconds


@dataclass(frozen=True)
class WordScores:
    """The loss of every word of a split, in the order of the text."""

    nll: FloatArray
    protocol: ScoringProtocol


@dataclass(frozen=True)
class ScoredRun:
    """The scores of one checkpoint on several splits."""

    checkpoint: str
    splits: dict[str, WordScores]


def score_run(
    run: LoadedRun,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    share: Share = ALONE,
) -> ScoredRun:
    """Score splits of a data folder with a run that is loaded."""
    found = {}
    for split in splits:
        scores = score_split(run, data, split, options, share=share).scores
        found[split] = WordScores(scores.words(), scores.protocol)
    return ScoredRun(run.checkpoint.name, found)


def score_once(
    run: Path,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    share: Share = ALONE,
) -> ScoredRun:
    """Score with a run's newest checkpoint and keep the scores in the run folder."""
    newest = share.done_by_all(lambda: RunFolder(run).choose("newest"))
    return score_checkpoint(run, newest, data, splits, options, share=share)


def score_checkpoint(
    run: Path,
    checkpoint: Checkpoint,
    data: DataFolder,
    splits: Sequence[str],
    options: ScoringOptions,
    *,
    load: Callable[[], LoadedRun] | None = None,
    keep: bool = True,
    share: Share = ALONE,
) -> ScoredRun:
    """Scores of any checkpoint of a run: those that the run folder keeps, while weights and text
    are the same, else new ones. The model is loaded once, or not at all; `load` loads it for
    callers that need it too. Without `keep` nothing is written.

    Processes that share the work all get the scores, and the first one keeps them.
    """
    load = load or (lambda: load_run(checkpoint.path))
    found: dict[str, WordScores] = {}
    loaded: LoadedRun | None = None
    for split in splits:
        path = _place(run, split, options.memory)
        key = share.done_by_all(partial(_key, checkpoint, data, split, options))
        kept = _find_kept(path, key, data.split(split))
        # Where one of the processes has to score, all of them do.
        if any(share.all_values(kept is None)) or kept is None:
            loaded = loaded or share.done_by_all(load)
            kept = score_run(loaded, data, [split], options, share).splits[split]
            if keep:
                first = share.rank == 0
                share.done_by_all(partial(_keep, path, key, kept) if first else lambda: None)
        found[split] = kept
    return ScoredRun(checkpoint.name, found)


def kept_scores(
    run: Path, data: DataFolder, splits: Sequence[str], memory: tuple[str, ...] = ()
) -> ScoredRun:
    """Scores of a run whose weights need not be there any more; ValueError if they were not kept,
    or are of another text."""
    found: dict[str, WordScores] = {}
    names = set()
    for split in splits:
        data.verify(split)
        path, text = _place(run, split, memory), data.split(split)
        try:
            key, scores = _read_kept(path, text)
        except Exception as error:  # zipfile and NumPy have a dozen ways to say it is damaged
            raise ValueError(f"{path}: no scores that can be read ({error})") from None
        if (key["text"], key["vocabulary"]) != (text.sha256, data.vocabulary.hash):
            raise ValueError(f"{path}: scores of another text or vocabulary than {data.path} has")
        names.add(key["checkpoint"])
        found[split] = scores
    if len(names) != 1:
        raise ValueError(f"{run / SCORES}: scores of different checkpoints: {', '.join(names)}")
    return ScoredRun(names.pop(), found)


def _place(run: Path, split: str, memory: tuple[str, ...]) -> Path:
    return run / SCORES / f"{'-'.join([split, *map(path_name, memory)])}.npz"


def _key(
    checkpoint: Checkpoint, data: DataFolder, split: str, options: ScoringOptions
) -> dict[str, Any]:
    """What kept scores belong to; a device decides nothing but rounding errors."""
    data.verify(split)
    return {
        "checkpoint": checkpoint.name,
        "weights": checkpoint.weights_hash,
        "vocabulary": data.vocabulary.hash,
        "text": data.split(split).sha256,
        "options": to_dict(replace(options, device=None)),
    }


def _keep(path: Path, key: dict[str, Any], scores: WordScores) -> None:
    path.parent.mkdir(exist_ok=True)
    facts = json.dumps({"key": key, "protocol": to_dict(scores.protocol)})
    with atomic_write(path) as unfinished:
        np.savez(unfinished, nll=scores.nll, facts=np.array(facts))


def _find_kept(path: Path, key: dict[str, Any], split: SplitFacts) -> WordScores | None:
    """None if there are none, or those of other weights or another text, or damaged ones."""
    try:
        held, scores = _read_kept(path, split)
    except Exception:  # zipfile and NumPy have a dozen ways to say that a file is damaged
        return None
    return scores if held == key else None


def _read_kept(path: Path, split: SplitFacts) -> tuple[dict[str, Any], WordScores]:
    require_file(path)
    # NumPy compares the checksums of the archive.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        facts, nll = load_object(str(archive["facts"])), archive["nll"]
    protocol = from_dict(ScoringProtocol, facts["protocol"])
    counts = (protocol.tokens, protocol.words, protocol.unk)
    is_of_split = counts == (split.tokens, split.words, split.unknown)
    if not is_of_split or nll.dtype != np.float64 or nll.shape != (split.words,):
        raise ValueError("damaged: no losses of that split")
    if not np.isfinite(nll).all() or nll.min() < -_ROUNDING:
        raise ValueError("damaged: losses that are none")
    return facts["key"], WordScores(nll, protocol)


def make_member(
    plan: Plan, words: DataFolder, split: str, *, scored: ScoredRun | None, problem: str = ""
) -> StudyMember:
    """A member from its run folder and its scores on the words of the folder `words`; its losses
    are kept word by word for `split`.

    Curve, time and speed are of the training up to the checkpoint that was scored.
    """
    log = _log_until(plan.run, scored)
    reports = [line for line in log if isinstance(line, Report)]
    last = reports[-1] if reports else None
    scores = scored.splits if scored else {}
    return StudyMember(
        label=plan.label,
        factorization=plan.factorization,
        run=str(plan.run.path),
        checkpoint=scored.checkpoint if scored else None,
        config=plan.config,
        scores={
            name: split_score(found.nll, np.asarray(words.tokens(name).ids), found.protocol)
            for name, found in scores.items()
        },
        nll=scores[split].nll if split in scores else None,
        curve=curve(log),
        seen=_seen(last, plan.config, plan.data) if last else None,
        seconds=training_seconds(last) if last else None,
        cpu_seconds=last.cpu_seconds if last else None,
        compile_seconds=last.compile_seconds if last else None,
        # The median, which compiling the model does not touch.
        tokens_per_second=(
            statistics.median(report.tokens_per_second for report in reports) if reports else None
        ),
        streaming_words_per_second=_streaming(plan.run.path, scored),
        memory=max((report.memory for report in reports), default=None),
        compiled=all_known(report.compiled for report in reports),
        versions=plan.run.versions(),
        problem=problem,
    )


def measure_streaming(plan: Plan, scored: ScoredRun) -> None:
    """Time the scored checkpoint word by word on a CPU, once, and keep the speed."""
    if _streaming(plan.run.path, scored) is not None:
        return
    split = next(iter(scored.splits))
    ids, text = np.asarray(plan.data.tokens(split).ids), plan.data.split(split)
    model = load_run(plan.run.choose("newest").path).model
    speed = streaming_speed(model, ids, plan.config.batches.eval_block)
    facts = {"checkpoint": scored.checkpoint, "words_per_second": speed * text.words / text.tokens}
    atomic_write_text(plan.run.path / SCORES / _STREAMING, json.dumps(facts))


def _streaming(run: Path, scored: ScoredRun | None) -> float | None:
    try:
        facts = load_object(read_file(run / SCORES / _STREAMING))
    except (OSError, ValueError):
        return None
    is_same = scored is not None and facts.get("checkpoint") == scored.checkpoint
    return float(facts["words_per_second"]) if is_same else None


def split_score(nll: FloatArray, word_ids: IntArray, protocol: ScoringProtocol) -> SplitScore:
    """The mean loss of a split, with and without unknown words.

    ValueError if it is so high that there is no perplexity to compare.
    """
    known = word_ids != UNKNOWN
    known_loss = float(np.mean(nll[known], dtype=np.float64)) if known.any() else math.nan
    loss = float(np.mean(nll, dtype=np.float64))
    if max(loss, known_loss) >= LARGEST_LOSS:
        raise ValueError(
            f"a mean loss of {loss:.3g} nats per word, an infinite perplexity: its training "
            "diverged; lower the learning rate"
        )
    return SplitScore(loss=loss, known_loss=known_loss, protocol=protocol)


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
    reports = {line.update: line for line in log if isinstance(line, Report)}
    validations = {line.update: line for line in curve_of(log)}
    points: list[CurvePoint] = []
    compiling = 0.0  # as the last report has it
    for update in sorted({*reports, *validations}):
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


def all_known(values: Iterable[bool | None]) -> bool | None:
    """Whether all of those that are known are true; None if none is known."""
    known = [value for value in values if value is not None]
    return all(known) if known else None
