"""A study: one row per model, with differences, intervals, frequency bins and lists of words.

`build` makes it of `StudyMember`s, however they were trained; it is all that figures and reports
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean, stdev

import numpy as np

from zipflm.data.vocabulary import UNKNOWN, Vocabulary
from zipflm.studies.bins import (
    BIN_NAMES,
    RARE,
    FloatArray,
    FrequencyBin,
    IntArray,
    bin_indices,
    loss_by_bin,
    previous_words,
)
from zipflm.studies.members import CurvePoint, Seen, StudyMember, all_known
from zipflm.studies.paper import REFERENCE, PaperModel, comparison_row, setting_row
from zipflm.studies.statistics import Estimate, Interval, Sample, TextBlocks
from zipflm.studies.word_lists import WordLists, word_lists
from zipflm.units import perplexity

NOT_COMPILED = "was to be compiled but ran uncompiled; its time and speed are not comparable"
BUSY = "was trained while other processes held the CPU; its time and speed are not comparable"


@dataclass(frozen=True, kw_only=True)
class SeedMean:
    """A perplexity over seeds: the mean and, with two or more, their standard deviation."""

    mean: float
    deviation: float | None = None

    @classmethod
    def of_losses(cls, losses: Sequence[float]) -> SeedMean:
        """The mean is that of the losses, so that the ratio of two rows is the difference of their
        losses."""
        spread = stdev(map(perplexity, losses)) if len(losses) > 1 else None
        return cls(mean=perplexity(fmean(losses)), deviation=spread)


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """All seeds of one model. Numbers are of the seeds that have a result."""

    label: str
    members: tuple[StudyMember, ...]
    paper: PaperModel | None

    @property
    def first(self) -> StudyMember:
        return self.members[0]

    @cached_property
    def scored(self) -> tuple[StudyMember, ...]:
        return tuple(member for member in self.members if member.scores)

    @cached_property
    def perplexity(self) -> dict[str, SeedMean]:
        """By split; empty without a result."""
        return {
            split: SeedMean.of_losses([member.scores[split].loss for member in self.scored])
            for split in (self.scored[0].scores if self.scored else ())
        }

    @cached_property
    def known_perplexity(self) -> dict[str, SeedMean]:
        return {
            split: SeedMean.of_losses([member.scores[split].known_loss for member in self.scored])
            for split in (self.scored[0].scores if self.scored else ())
        }

    def mean(self, name: str) -> float | None:
        """Mean of a member's field, such as `seconds`; None if no member has it."""
        values = [value for m in self.scored if (value := getattr(m, name)) is not None]
        return fmean(values) if values else None

    @property
    def memory(self) -> int | None:
        return max((m.memory for m in self.scored if m.memory is not None), default=None)

    @property
    def compiled(self) -> bool | None:
        return all_known(member.compiled for member in self.scored)

    @property
    def seen(self) -> Seen | None:
        return next((member.seen for member in self.scored if member.seen), None)

    @cached_property
    def curve(self) -> tuple[CurvePoint, ...]:
        """The mean over the seeds, at the updates that all of them have."""
        curves = [{p.update: p for p in member.curve} for member in self.members if member.curve]
        shared = [u for u in curves[0] if all(u in c for c in curves)] if curves else []
        return tuple(_mean_point([c[update] for c in curves]) for update in shared)

    @property
    def problem(self) -> str:
        """Why seeds have no result; they are named where not all have the same reason."""
        reasons = {member.problem for member in self.members}
        if len(reasons) == 1:
            return reasons.pop()
        return "; ".join(f"seed {m.seed}: {m.problem}" for m in self.members if m.problem)

    @property
    def is_busy(self) -> bool:
        return any(member.is_busy for member in self.members)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why its time and speed are not comparable."""
        return (NOT_COMPILED,) * (self.compiled is False) + (BUSY,) * self.is_busy

    @cached_property
    def params(self) -> dict[str, int]:
        """Trained parameters by part, `input...`, `decoder...` and `output...`."""
        return dict(self.first.config.params_by_part())

    def params_of(self, part: str) -> int:
        return sum(n for name, n in self.params.items() if name.split(".")[0] == part)

    @property
    def num_params(self) -> int:
        return sum(self.params.values())

    @cached_property
    def layers(self) -> tuple[str, str]:
        """Input and output layer in words."""
        config = self.first.config
        return config.describe(config.batches.unit)


def _mean_point(points: Sequence[CurvePoint]) -> CurvePoint:
    losses = [point.loss for point in points if point.loss is not None]
    valid = [point.valid_loss for point in points if point.valid_loss is not None]
    return CurvePoint(
        update=points[0].update,
        seconds=fmean(point.seconds for point in points),
        loss=fmean(losses) if len(losses) == len(points) else None,
        valid_loss=fmean(valid) if len(valid) == len(points) else None,
    )


@dataclass(frozen=True, kw_only=True)
class SplitText:
    """The words that every model of a study was scored on."""

    split: str
    word_ids: IntArray
    vocabulary: Vocabulary
    line_starts: IntArray
    """Where each line begins, as a place in `word_ids`."""


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
class Difference:
    """Two rows on the same text."""

    label: str
    other: str
    nats: Interval
    """Mean loss of `label` less that of `other`; below zero where `label` is better."""
    has_all_seeds: bool
    """Whether both rows have several seeds, so that the interval covers training as well as
    text."""

    @property
    def reversed(self) -> Difference:
        return replace(self, label=self.other, other=self.label, nats=self.nats.negated)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting that was tried for a row before its members were trained."""

    label: str
    setting: str
    perplexity: float | None
    """On the whole valid set; None if it could not be trained."""
    seconds: float | None
    """Of training."""
    is_chosen: bool
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything that figures and reports show."""

    title: str
    dataset: str
    """The preset's first part; the paper's rows are shown for those it reports."""
    split: str
    reference: str
    """The row the others are compared to."""
    rows: tuple[ModelRow, ...]
    word_bins: tuple[FrequencyBin, ...]
    previous_bins: tuple[FrequencyBin, ...]
    words: Mapping[str, WordLists]
    vocabulary: Vocabulary
    facts: Mapping[str, str]
    """Data, command and machine, for the reader."""
    blocks: TextBlocks
    intervals: Mapping[str, Interval]
    """Of the perplexity of each row on the split that is analysed, seeds included."""
    known_intervals: Mapping[str, Interval]
    """The same without unknown words."""
    differences: tuple[Difference, ...]
    """Of every pair of rows, in what `headline` ranks by."""
    rare: tuple[Difference, ...] = ()
    """Of every pair of rows, on rare words alone."""
    after_rare: tuple[Difference, ...] = ()
    """The same on words after rare ones."""
    contexts: tuple[ContextScore, ...] = ()
    tried: tuple[Tried, ...] = ()

    @property
    def finished(self) -> tuple[ModelRow, ...]:
        return tuple(row for row in self.rows if row.perplexity)

    @property
    def missing(self) -> tuple[str, ...]:
        """Rows without a result, or without that of every seed; the study is unfinished."""
        return tuple(row.label for row in self.rows if row.problem)

    @property
    def has_unknown(self) -> bool:
        return any(b.name == "UNK" and b.tokens for b in self.word_bins)

    @property
    def is_mixed(self) -> bool:
        """Whether the units of the models differ and some words are unknown."""
        return self.has_unknown and have_several_units(self.rows)

    def headline(self, row: ModelRow) -> SeedMean:
        """The perplexity that ranks the rows: on known words where the units of the models differ
        and some words are unknown, since only word models may then say `<unk>`."""
        return (row.known_perplexity if self.is_mixed else row.perplexity)[self.split]

    @property
    def headline_name(self) -> str:
        return f"{self.split} perplexity" + (" on known words" if self.is_mixed else "")

    def headline_interval(self, row: ModelRow) -> Interval | None:
        """None without a result, or where the text is too short or has too few sources."""
        return (self.known_intervals if self.is_mixed else self.intervals).get(row.label)

    @cached_property
    def ranked(self) -> tuple[ModelRow, ...]:
        """The finished rows, the best one first."""
        return tuple(sorted(self.finished, key=lambda row: self.headline(row).mean))

    def difference(self, label: str, other: str) -> Difference | None:
        """The difference of two rows, in this direction; None where it cannot be estimated."""
        return find_difference(self.differences, label, other)

    def is_better(self, label: str, other: str) -> bool:
        """Whether a row is better than another beyond the doubt that its interval leaves."""
        found = self.difference(label, other)
        return found is not None and found.nats.high < 0

    @cached_property
    def level_with_best(self) -> tuple[str, ...]:
        """Rows that cannot be told from the best one, which is the first of them."""
        labels = [row.label for row in self.ranked]
        return tuple(label for label in labels if not self.is_better(labels[0], label))


def find_difference(differences: Sequence[Difference], label: str, other: str) -> Difference | None:
    """The difference of two rows, in this direction; None if it is not there."""
    for found in differences:
        if (found.label, found.other) == (label, other):
            return found
        if (found.other, found.label) == (label, other):
            return found.reversed
    return None


def have_several_units(rows: Sequence[ModelRow]) -> bool:
    """Whether some of the models with a result score words and others sub-words."""
    return len({member.config.batches.unit for row in rows for member in row.scored}) > 1


def build(
    members: Sequence[StudyMember],
    text: SplitText,
    *,
    title: str,
    dataset: str,
    facts: Mapping[str, str],
    contexts: Sequence[ContextScore] = (),
    tried: Sequence[Tried] = (),
) -> Study:
    """The study of `members`, whose `nll` belong to the words of `text`."""
    labels = list(dict.fromkeys(member.label for member in members))
    rows = tuple(_row([m for m in members if m.label == label], dataset) for label in labels)
    by_seed = {row.label: _nll_of(row) for row in rows if row.scored}
    losses = {label: nll.mean(axis=0) for label, nll in by_seed.items()}
    word_ids, counts = np.asarray(text.word_ids), text.vocabulary.counts
    previous = previous_words(word_ids)
    reference = REFERENCE if REFERENCE in losses else next(iter(losses), "")
    sample = Sample(word_ids, text.line_starts, text.vocabulary, by_seed, reference)
    is_known = word_ids != UNKNOWN
    everything = sample.estimates(np.ones(len(word_ids), dtype=bool))
    known = sample.estimates(is_known) if is_known.any() else {}
    is_mixed = not is_known.all() and have_several_units(rows)
    return Study(
        title=title,
        dataset=dataset,
        split=text.split,
        reference=reference,
        rows=rows,
        word_bins=sample.with_intervals(loss_by_bin(word_ids, counts, losses), word_ids),
        previous_bins=sample.with_intervals(
            loss_by_bin(word_ids, counts, losses, by=previous), previous
        ),
        words={
            label: word_lists(word_ids, counts, nll, losses[reference], sample.blocks.of_word)
            for label, nll in losses.items()
            if label != reference
        },
        vocabulary=text.vocabulary,
        facts={**facts, **_trained_with(members)},
        blocks=sample.blocks,
        intervals=_perplexities(everything),
        known_intervals=_perplexities(known),
        differences=_differences(known if is_mixed else everything),
        rare=_on_rare(sample, word_ids, counts),
        after_rare=_on_rare(sample, previous, counts),
        contexts=tuple(contexts),
        tried=tuple(tried),
    )


def _row(members: Sequence[StudyMember], dataset: str) -> ModelRow:
    label = members[0].label
    find = comparison_row if label == members[0].factorization else setting_row
    return ModelRow(label=label, members=tuple(members), paper=find(dataset, label))


def _nll_of(row: ModelRow) -> FloatArray:
    """[seeds, words]"""
    return np.stack([m.nll for m in row.scored if m.nll is not None]).astype(np.float64, copy=False)


def _trained_with(members: Sequence[StudyMember]) -> dict[str, str]:
    """Device, packages and commit of the trainings; of every one where they differ."""
    texts = [
        ", ".join(
            ([one.device] if one.device else [])
            + [f"{name} {one.packages[name]}" for name in ("torch", "zipflm")]
            + ([f"commit {one.commit[:12]}"] if one.commit else [])
        )
        for one in (member.versions.latest for member in members if member.versions)
    ]
    return {"trained with": "; ".join(dict.fromkeys(texts))} if texts else {}


def _perplexities(estimates: Mapping[str, Estimate]) -> dict[str, Interval]:
    intervals = {label: estimate.interval for label, estimate in estimates.items()}
    return {label: i.as_perplexity for label, i in intervals.items() if i is not None}


def _differences(estimates: Mapping[str, Estimate]) -> tuple[Difference, ...]:
    found = []
    for (label, ours), (other, theirs) in combinations(estimates.items(), 2):
        difference = ours - theirs
        if (nats := difference.interval) is not None:
            both = difference.has_all_seeds
            found.append(Difference(label=label, other=other, nats=nats, has_all_seeds=both))
    return tuple(found)


def _on_rare(sample: Sample, groups: IntArray, counts: IntArray) -> tuple[Difference, ...]:
    """Differences on the words whose entry of `groups` is rare."""
    is_rare = bin_indices(groups, counts) == BIN_NAMES.index(RARE)
    return _differences(sample.estimates(is_rare)) if is_rare.any() else ()
