"""A study: one row per model, with differences, intervals, frequency bins and word lists.

`build_study` computes it from `StudyMember`s. Figures and reports use only the study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean, stdev

import numpy as np

from zipflm.data.folder import DataFolder
from zipflm.data.vocabulary import SPECIALS, UNKNOWN, Vocabulary
from zipflm.studies.bins import FloatArray, FrequencyBin, IntArray, is_rare, previous_words
from zipflm.studies.members import CurvePoint, StudyMember
from zipflm.studies.paper import REFERENCE, PaperModel, comparison_row, setting_row
from zipflm.studies.statistics import Estimate, Interval, Sample, TextBlocks
from zipflm.studies.word_lists import WordLists, word_lists
from zipflm.units import perplexity

Differences = Mapping[tuple[str, str], Interval]
"""Mean loss of the first row minus that of the second on the same text, in nats. Lists each pair
once."""
_COUNTED_AT_ONCE = 1 << 24
NOT_COMPILED = "could not be compiled; its time and speed are not comparable"


@dataclass(frozen=True, kw_only=True)
class SeedMean:
    """Perplexity of the mean loss over seeds, and the standard deviation of their perplexities."""

    mean: float
    deviation: float | None = None

    @classmethod
    def of_losses(cls, losses: Sequence[float]) -> SeedMean:
        """Average losses, not perplexities, so that ratios of perplexities match differences in
        loss."""
        spread = stdev(map(perplexity, losses)) if len(losses) > 1 else None
        return cls(mean=perplexity(fmean(losses)), deviation=spread)


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """All seeds of one model. Means are over the seeds that have a result; a member is one seed."""

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
        """Mean perplexity by split; empty without a result."""
        return self._seed_means("loss")

    @cached_property
    def known_perplexity(self) -> dict[str, SeedMean]:
        return self._seed_means("known_loss")

    def _seed_means(self, name: str) -> dict[str, SeedMean]:
        splits = self.scored[0].scores if self.scored else ()
        return {
            split: SeedMean.of_losses([getattr(m.scores[split], name) for m in self.scored])
            for split in splits
        }

    def mean(self, name: str) -> float | None:
        """Return the mean of a field such as `seconds` over the members that have it."""
        values = [value for m in self.scored if (value := getattr(m, name)) is not None]
        return fmean(values) if values else None

    @property
    def memory(self) -> int | None:
        """Largest peak memory of all seeds, in bytes."""
        return max((m.memory for m in self.scored if m.memory is not None), default=None)

    @property
    def ran_uncompiled(self) -> bool:
        """Whether a member could not be compiled, so that time and speed are not comparable."""
        return any(member.compiled is False for member in self.scored)

    @cached_property
    def curve(self) -> tuple[CurvePoint, ...]:
        """Mean over the seeds that have a result, at the updates that all of them have. Without a
        result, over all seeds. If seeds differ in their number of updates, that of the first."""
        members = self.scored or self.members
        if len({member.updates for member in members}) > 1:
            return members[0].curve
        curves = [{p.update: p for p in member.curve} for member in members if member.curve]
        shared = [u for u in curves[0] if all(u in c for c in curves)] if curves else []
        return tuple(_mean_point([c[update] for c in curves]) for update in shared)

    @property
    def problem(self) -> str:
        """Why seeds have no result. The seeds are named if their problems differ."""
        reasons = {member.problem for member in self.members}
        if len(reasons) == 1:
            return reasons.pop()
        return "; ".join(f"seed {m.seed}: {m.problem}" for m in self.members if m.problem)

    @cached_property
    def params(self) -> dict[str, int]:
        """Parameter counts by name: `input...`, `decoder...`, `output...`."""
        return dict(self.first.config.params_by_part())

    def params_of(self, part: str) -> int:
        return sum(n for name, n in self.params.items() if name.split(".")[0] == part)

    @property
    def num_params(self) -> int:
        return sum(self.params.values())

    @cached_property
    def layers(self) -> tuple[str, str]:
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
    """The text that all models of a study were scored on."""

    split: str
    word_ids: IntArray
    vocabulary: Vocabulary
    """Its counts are those of the training text."""
    line_starts: IntArray
    """Index into `word_ids` of the first word of each line."""


def split_text(words: DataFolder, split: str) -> SplitText:
    tokens = words.tokens(split)
    return SplitText(
        split=split,
        word_ids=tokens.ids,
        vocabulary=_with_train_counts(words),
        line_starts=tokens.offsets[:-1],
    )


def _with_train_counts(words: DataFolder) -> Vocabulary:
    """Return the vocabulary with counts in the training text. The words and counts of a vocabulary
    can come from another text (`prepare --vocabulary`)."""
    vocabulary = words.vocabulary
    if "train" not in words.splits:
        return vocabulary
    words.verify("train")
    ids, counts = words.tokens("train").ids, np.zeros(len(vocabulary), dtype=np.int64)
    for start in range(0, len(ids), _COUNTED_AT_ONCE):
        counts += np.bincount(ids[start : start + _COUNTED_AT_ONCE], minlength=len(counts))
    counts[: len(SPECIALS)] = 0
    return Vocabulary(vocabulary.words, counts)


@dataclass(frozen=True, kw_only=True)
class ContextScore:
    """Perplexities of a model with one context size (Table 5 of the paper)."""

    label: str
    train_block: int
    block: int
    """Block size in scoring, including the context."""
    context: int
    perplexity: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The result of one setting of a model in a grid search (`--grid`)."""

    label: str
    setting: str
    perplexity: float | None
    """On the full validation set; None if training did not finish."""
    seconds: float | None
    is_chosen: bool
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """All results of a comparison."""

    title: str
    dataset: str
    """Dataset, named as in presets, whose published results, if any, the report shows. Can be
    empty."""
    split: str
    reference: str
    """The row that others are compared to."""
    rows: tuple[ModelRow, ...]
    word_bins: tuple[FrequencyBin, ...]
    previous_bins: tuple[FrequencyBin, ...]
    words: Mapping[str, WordLists]
    vocabulary: Vocabulary
    protocol: Mapping[str, str]
    """Entries of the report's Protocol section: data, settings and machine."""
    blocks: TextBlocks
    intervals: Mapping[str, Interval]
    """Interval of `headline`, by row; without rows that have no result or no interval."""
    differences: Differences
    """Every pair of rows whose difference has an interval, on the words that `headline` covers."""
    rare: Differences
    """Differences on rare words."""
    after_rare: Differences
    """Differences on words after rare words."""
    contexts: tuple[ContextScore, ...] = ()
    tried: tuple[Tried, ...] = ()

    @property
    def finished(self) -> tuple[ModelRow, ...]:
        """Rows with a result for at least one seed."""
        return tuple(row for row in self.rows if row.perplexity)

    @property
    def missing(self) -> tuple[str, ...]:
        """Labels of rows in which at least one seed has no result."""
        return tuple(row.label for row in self.rows if row.problem)

    @property
    def has_unknown(self) -> bool:
        return any(b.name == "UNK" and b.tokens for b in self.word_bins)

    @property
    def is_mixed(self) -> bool:
        """Whether word and subword models are compared and some words are unknown."""
        return self.has_unknown and have_several_units(self.rows)

    def headline(self, row: ModelRow) -> SeedMean:
        """Return the perplexity that ranks the rows: on known words if `is_mixed`, because word
        models predict a single `<unk>` where subword models predict a spelling."""
        return (row.known_perplexity if self.is_mixed else row.perplexity)[self.split]

    @property
    def headline_name(self) -> str:
        return f"{self.split} perplexity" + (" on known words" if self.is_mixed else "")

    @cached_property
    def ranked(self) -> tuple[ModelRow, ...]:
        return tuple(sorted(self.finished, key=lambda row: self.headline(row).mean))

    def difference(self, label: str, other: str) -> Interval | None:
        """Return the loss of `label` minus that of `other`; None if it has no interval."""
        return find_difference(self.differences, label, other)

    def is_better(self, label: str, other: str) -> bool:
        """Return whether the interval of the difference is below zero."""
        difference = self.difference(label, other)
        return difference is not None and difference.high < 0

    @cached_property
    def tied_with_best(self) -> tuple[str, ...]:
        """Labels of the best row and of those that are not significantly worse."""
        labels = [row.label for row in self.ranked]
        return tuple(label for label in labels if not self.is_better(labels[0], label))


def find_difference(differences: Differences, label: str, other: str) -> Interval | None:
    """Return `label` minus `other`, in whichever order the pair is listed."""
    if (other, label) in differences:
        return differences[other, label].negated
    return differences.get((label, other))


def have_several_units(rows: Sequence[ModelRow]) -> bool:
    return len({member.config.batches.unit for row in rows for member in row.scored}) > 1


def build_study(
    members: Sequence[StudyMember],
    text: SplitText,
    *,
    title: str,
    dataset: str,
    protocol: Mapping[str, str],
    contexts: Sequence[ContextScore] = (),
    tried: Sequence[Tried] = (),
) -> Study:
    """Build the study of `members`, whose `nll` has one value per word of `text`."""
    labels = list(dict.fromkeys(member.label for member in members))
    rows = tuple(_row([m for m in members if m.label == label], dataset) for label in labels)
    by_seed = {row.label: _nll_of(row) for row in rows if row.scored}
    losses = {label: nll.mean(axis=0) for label, nll in by_seed.items()}
    word_ids, counts = np.asarray(text.word_ids), text.vocabulary.counts
    previous = previous_words(word_ids)
    reference = REFERENCE if REFERENCE in losses else next(iter(losses), "")
    runs = {row.label: [member.run for member in row.scored] for row in rows}
    sample = Sample(word_ids, text.line_starts, text.vocabulary, by_seed, reference, runs)
    is_known = word_ids != UNKNOWN
    leaves_out_unknown = not is_known.all() and have_several_units(rows)
    estimates = sample.estimates(is_known if leaves_out_unknown else np.ones_like(is_known))
    intervals = {label: estimate.loss_interval for label, estimate in estimates.items()}
    return Study(
        title=title,
        dataset=dataset,
        split=text.split,
        reference=reference,
        rows=rows,
        word_bins=sample.loss_by_bin(word_ids),
        previous_bins=sample.loss_by_bin(previous),
        words={
            label: word_lists(word_ids, counts, nll, losses[reference], sample.blocks.block_of_word)
            for label, nll in losses.items()
            if label != reference
        },
        vocabulary=text.vocabulary,
        protocol={**protocol, **_trained_with(members)},
        blocks=sample.blocks,
        intervals={label: i.as_perplexity for label, i in intervals.items() if i is not None},
        differences=_differences(estimates),
        rare=_differences(sample.estimates(is_rare(word_ids, counts))),
        after_rare=_differences(sample.estimates(is_rare(previous, counts))),
        contexts=tuple(contexts),
        tried=tuple(tried),
    )


def _row(members: Sequence[StudyMember], dataset: str) -> ModelRow:
    label = members[0].label
    find = comparison_row if label == members[0].factorization else setting_row
    return ModelRow(label=label, members=tuple(members), paper=find(dataset, label))


def _nll_of(row: ModelRow) -> FloatArray:
    """Return the losses of a row as [seeds, words]."""
    return np.stack([m.nll for m in row.scored if m.nll is not None]).astype(np.float64, copy=False)


def _trained_with(members: Sequence[StudyMember]) -> dict[str, str]:
    texts = [
        ", ".join(
            ([version.device] if version.device else [])
            + [f"{name} {version.packages[name]}" for name in ("torch", "zipflm")]
            + ([f"commit {version.commit[:12]}"] if version.commit else [])
        )
        for version in (member.versions.latest for member in members if member.versions)
    ]
    return {"trained with": "; ".join(dict.fromkeys(texts))} if texts else {}


def _differences(estimates: Mapping[str, Estimate]) -> Differences:
    return {
        (label, other): interval
        for (label, ours), (other, theirs) in combinations(estimates.items(), 2)
        if (interval := (ours - theirs).interval) is not None
    }
