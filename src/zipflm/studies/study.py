"""The tables of a study: one row per model, and what the bins and word lists say about it.

A `Member` is one trained model with one seed, described by plain values; `build.build` turns
members into a `Study`, which is all that figures and reports read. Nothing here knows how a member
was trained, so runs of any origin make a study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from zipflm.config import Config
from zipflm.data.vocabulary import Vocabulary
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.runs.records import Versions
from zipflm.studies.bins import FloatArray, FrequencyBin, IntArray
from zipflm.studies.paper import PaperModel
from zipflm.studies.statistics import Interval, TextBlocks
from zipflm.studies.word_lists import WordLists
from zipflm.units import perplexity

NOT_COMPILED = "was to be compiled but ran uncompiled; its time and speed are not comparable"
BUSY = "was trained while other processes held the CPU; its time and speed are not comparable"


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
    seen: Seen | None = None
    seconds: float | None = None
    """Spent training, without compilation."""
    cpu_seconds: float | None = None
    """CPU time of the training thread in these seconds; None where it says nothing, as on a GPU."""
    compile_seconds: float | None = None
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

    @property
    def is_busy(self) -> bool:
        """Whether training took over a third more seconds than its thread had of the CPU. Alone on
        a machine the thread has the CPU nearly all the time, however many threads help it."""
        if self.seconds is None or self.cpu_seconds is None:
            return False
        return self.seconds > 4 / 3 * self.cpu_seconds


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

    @classmethod
    def of_losses(cls, losses: Sequence[float]) -> Summary | None:
        """Perplexities; the mean is that of the losses, so that the ratio of two rows is the
        difference of their losses."""
        if not losses:
            return None
        spread = stdev(map(perplexity, losses)) if len(losses) > 1 else None
        return cls(mean=perplexity(fmean(losses)), deviation=spread)


@dataclass(frozen=True, kw_only=True)
class Row:
    """All seeds of one model."""

    label: str
    members: tuple[Member, ...]
    perplexity: Mapping[str, Summary]
    known_perplexity: Mapping[str, Summary]
    seen: Seen | None
    seconds: Summary | None
    cpu_seconds: Summary | None
    compile_seconds: Summary | None
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

    @property
    def is_busy(self) -> bool:
        return any(member.is_busy for member in self.members)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why its time and speed are not comparable."""
        return (NOT_COMPILED,) * (self.compiled is False) + (BUSY,) * self.is_busy

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
        return Difference(
            label=self.other,
            other=self.label,
            nats=self.nats.negated,
            has_all_seeds=self.has_all_seeds,
        )


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
    rows: tuple[Row, ...]
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
    def finished(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.perplexity)

    @property
    def missing(self) -> tuple[str, ...]:
        """Rows without a result, or without that of every seed; the study is unfinished."""
        return tuple(row.label for row in self.rows if row.problem)

    @property
    def has_unknown(self) -> bool:
        return any(b.name == "UNK" and b.tokens for b in self.word_bins)

    def headline(self, row: Row) -> Summary:
        """The perplexity that ranks the rows: on known words where the units of the models differ
        and some words are unknown, since only word models may then say `<unk>`."""
        return (row.known_perplexity if self.is_mixed else row.perplexity)[self.split]

    def headline_interval(self, row: Row) -> Interval | None:
        """The interval of `headline`; None where the text is too short or has too few sources."""
        return (self.known_intervals if self.is_mixed else self.intervals).get(row.label)

    @property
    def is_mixed(self) -> bool:
        """Whether the units of the models differ and some words are unknown."""
        return self.has_unknown and len(units_of(self.rows, self.split)) > 1

    @property
    def ranked(self) -> tuple[Row, ...]:
        """The finished rows, the best one first."""
        return tuple(sorted(self.finished, key=lambda row: self.headline(row).mean))

    def difference(self, label: str, other: str) -> Difference | None:
        """The difference of two rows, in this direction; None where it cannot be estimated."""
        return find_difference(self.differences, label, other)

    def is_better(self, label: str, other: str) -> bool:
        """Whether a row is better than another beyond the doubt that its interval leaves."""
        found = self.difference(label, other)
        return found is not None and found.nats.high < 0

    @property
    def level_with_best(self) -> tuple[str, ...]:
        """Rows that cannot be told from the best one, which is the first of them."""
        if not self.finished:
            return ()
        best = self.ranked[0].label
        return tuple(r.label for r in self.ranked if not self.is_better(best, r.label))

    @property
    def headline_name(self) -> str:
        """What `headline` is, for sentences."""
        return f"{self.split} perplexity" + (" on known words" if self.is_mixed else "")


def find_difference(differences: Sequence[Difference], label: str, other: str) -> Difference | None:
    """The difference of two rows, in this direction; None if it is not there."""
    for found in differences:
        if (found.label, found.other) == (label, other):
            return found
        if (found.other, found.label) == (label, other):
            return found.reversed
    return None


def units_of(rows: Sequence[Row], split: str) -> set[str]:
    """Words, sub-words: what the models of these rows score."""
    return {m.scores[split].protocol.unit for r in rows for m in r.members if split in m.scores}
