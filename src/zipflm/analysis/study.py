"""The tables of a study: one row per model, and what the bins and word lists say about it.

A `Member` is one trained model with one seed, described by plain values; `build` turns members
into a `Study`, which is all that figures and reports read. Nothing here knows how a member was
trained, so runs of any origin make a study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

import numpy as np

from zipflm.analysis.frequency_bins import (
    FloatArray,
    FrequencyBin,
    IntArray,
    loss_by_bin,
    previous_words,
)
from zipflm.analysis.paper import PaperModel, comparison_row, setting_row
from zipflm.analysis.word_lists import WordLists, word_lists
from zipflm.config import Config
from zipflm.data.vocabulary import END, UNKNOWN, Vocabulary
from zipflm.evaluation.scores import ScoringProtocol
from zipflm.runs.records import Versions
from zipflm.units import LARGEST_LOSS, perplexity

REFERENCE = "ADP-T"
NOT_COMPILED = "was to be compiled but ran uncompiled; its time and speed are not comparable"


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One moment of a training run; losses in nats per word."""

    update: int
    seconds: float
    """Spent training until then."""
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
class Member:
    """One trained model with one seed."""

    label: str
    """The row it belongs to: the factorization, with the setting where a study varies one."""
    factorization: str
    seed: int
    run: str
    checkpoint: str | None
    """The one that was scored; None for a member without a result."""
    input: str
    output: str
    params: Mapping[str, int]
    """Trained parameters by part, `input...`, `decoder...` and `output...`."""
    scores: Mapping[str, SplitScore] = field(default_factory=dict)
    """By split; empty for a member without a result."""
    nll: FloatArray | None = None
    """Loss of every word of the split that is analysed."""
    curve: tuple[CurvePoint, ...] = ()
    seconds: float | None = None
    tokens_per_second: float | None = None
    memory: int | None = None
    """Peak, in bytes."""
    compiled: bool | None = None
    """Whether it ran compiled; None where that was not asked for, or is not known."""
    config: Config
    versions: Versions | None
    """None for a model that was trained elsewhere."""
    problem: str = ""
    """Why there is no result, for the row; empty where there is one."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean over seeds and, with two or more, their standard deviation."""

    mean: float
    deviation: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary | None:
        if not values:
            return None
        return cls(mean=fmean(values), deviation=stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, kw_only=True)
class Row:
    """All seeds of one model."""

    label: str
    members: tuple[Member, ...]
    perplexity: Mapping[str, Summary]
    known_perplexity: Mapping[str, Summary]
    seconds: Summary | None
    tokens_per_second: Summary | None
    memory: int | None
    compiled: bool | None
    curve: tuple[CurvePoint, ...]
    paper: PaperModel | None

    @property
    def first(self) -> Member:
        return self.members[0]

    @property
    def problem(self) -> str:
        """Why seeds have no result; they are named where not all have the same reason."""
        reasons = {member.problem for member in self.members}
        if len(reasons) == 1:
            return reasons.pop()
        return "; ".join(f"seed {m.seed}: {m.problem}" for m in self.members if m.problem)

    def params_of(self, part: str) -> int:
        """Parameters of `input`, `decoder` or `output`."""
        parts = self.first.params.items()
        return sum(count for name, count in parts if name.split(".")[0] == part)

    @property
    def num_params(self) -> int:
        return sum(self.first.params.values())


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """The words that every model of a study was scored on."""

    split: str
    word_ids: IntArray
    vocabulary: Vocabulary


@dataclass(frozen=True, kw_only=True)
class ContextScore:
    """Perplexities of one model with one size of context (the paper's table 5)."""

    label: str
    train_block: int
    block: int
    """Tokens the model sees at once when scored, context included."""
    context: int
    perplexity: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that figures and reports show."""

    title: str
    dataset: str
    """The preset's first part; the paper's rows are shown for those it reports."""
    split: str
    reference: str
    """The row the others are compared to."""
    rows: tuple[Row, ...]
    word_bins: tuple[FrequencyBin, ...]
    previous_bins: tuple[FrequencyBin, ...]
    words: Mapping[str, WordLists]
    vocabulary: Vocabulary
    facts: Mapping[str, str]
    """Data, command and machine, for the reader."""
    contexts: tuple[ContextScore, ...] = ()

    @property
    def finished(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.perplexity)

    @property
    def has_unknown(self) -> bool:
        return any(b.name == "UNK" and b.tokens for b in self.word_bins)

    def headline(self, row: Row) -> Summary:
        """The perplexity that ranks the rows: on known words where the units of the models differ
        and some words are unknown, since only word models may then say `<unk>`."""
        units = {m.scores[self.split].protocol.unit for r in self.finished
                 for m in r.members if m.scores}  # fmt: skip
        is_mixed = self.has_unknown and len(units) > 1
        return (row.known_perplexity if is_mixed else row.perplexity)[self.split]

    @property
    def headline_name(self) -> str:
        """What `headline` is, for sentences."""
        first = next(iter(self.finished), None)
        is_known = first and self.headline(first) is first.known_perplexity[self.split]
        return f"{self.split} perplexity" + (" on known words" if is_known else "")


def build(
    members: Sequence[Member],
    text: ScoredText,
    *,
    title: str,
    dataset: str,
    facts: Mapping[str, str],
) -> Study:
    """The tables of `members`, whose `nll` belong to the words of `text`."""
    if not members:
        raise ValueError("no models to compare; name at least one run or factorization")
    labels = list(dict.fromkeys(member.label for member in members))
    rows = tuple(_row([m for m in members if m.label == label], dataset) for label in labels)
    losses = {row.label: mean for row in rows if (mean := _mean_nll(row)) is not None}
    counts = text.vocabulary.counts
    previous = previous_words(text.word_ids, END)
    reference = REFERENCE if REFERENCE in losses else next(iter(losses), "")
    return Study(
        title=title,
        dataset=dataset,
        split=text.split,
        reference=reference,
        rows=rows,
        word_bins=tuple(loss_by_bin(text.word_ids, counts, losses)),
        previous_bins=tuple(loss_by_bin(text.word_ids, counts, losses, by=previous)),
        words={
            label: word_lists(text.word_ids, counts, nll, losses[reference])
            for label, nll in losses.items()
            if label != reference
        },
        vocabulary=text.vocabulary,
        facts=facts,
    )


def split_score(nll: FloatArray, word_ids: IntArray, protocol: ScoringProtocol) -> SplitScore:
    """The mean loss of a split, with and without unknown words.

    ValueError if it is so high that there is no perplexity to compare.
    """
    if len(nll) != len(word_ids) or len(nll) == 0:
        raise ValueError(f"{len(nll)} losses for {len(word_ids)} words of the split")
    known = word_ids != UNKNOWN
    known_loss = float(np.mean(nll[known], dtype=np.float64)) if known.any() else math.nan
    loss = float(np.mean(nll, dtype=np.float64))
    if max(loss, known_loss) >= LARGEST_LOSS:
        raise ValueError(
            f"a mean loss of {loss:.3g} nats per word, an infinite perplexity: its training "
            "diverged; lower the learning rate"
        )
    return SplitScore(loss=loss, known_loss=known_loss, protocol=protocol)


def _row(members: Sequence[Member], dataset: str) -> Row:
    good = [member for member in members if member.scores]
    splits = list(dict.fromkeys(split for member in good for split in member.scores))
    perplexities = {s: Summary.of([m.scores[s].perplexity for m in good]) for s in splits}
    known = {s: Summary.of([m.scores[s].known_perplexity for m in good]) for s in splits}
    rates = [m.tokens_per_second for m in good if m.tokens_per_second is not None]
    first = members[0]
    find = comparison_row if first.label == first.factorization else setting_row
    return Row(
        label=first.label,
        members=tuple(members),
        perplexity={split: value for split, value in perplexities.items() if value},
        known_perplexity={split: value for split, value in known.items() if value},
        seconds=Summary.of([m.seconds for m in good if m.seconds is not None]),
        tokens_per_second=Summary.of(rates),
        memory=max((m.memory for m in good if m.memory is not None), default=None),
        compiled=_all([m.compiled for m in good if m.compiled is not None]),
        curve=_mean_curve([member.curve for member in members if member.curve]),
        paper=find(dataset, first.label),
    )


def _all(answers: Sequence[bool]) -> bool | None:
    return all(answers) if answers else None


def _mean_nll(row: Row) -> FloatArray | None:
    arrays = [m.nll for m in row.members if m.nll is not None]
    return np.mean(arrays, axis=0, dtype=np.float64) if arrays else None


def _mean_curve(curves: Sequence[tuple[CurvePoint, ...]]) -> tuple[CurvePoint, ...]:
    """The mean over the seeds, at the updates that all of them have."""
    if not curves:
        return ()
    by_update = [{point.update: point for point in curve} for curve in curves]
    shared = [point.update for point in curves[0] if all(point.update in c for c in by_update)]
    return tuple(_mean_point([curve[update] for curve in by_update]) for update in shared)


def _mean_point(points: Sequence[CurvePoint]) -> CurvePoint:
    losses = [point.loss for point in points if point.loss is not None]
    valid = [point.valid_loss for point in points if point.valid_loss is not None]
    return CurvePoint(
        update=points[0].update,
        seconds=fmean(point.seconds for point in points),
        loss=fmean(losses) if len(losses) == len(points) else None,
        valid_loss=fmean(valid) if len(valid) == len(points) else None,
    )
