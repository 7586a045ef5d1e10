"""Compare every pair of models with the paper: by perplexity, loss on rare words, and loss after
rare words.

A study agrees with the paper if the 95% interval of its difference is on the same side of zero, and
disagrees if the interval is on the other side. If the interval includes zero or is missing, the
difference is not significant.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from zipflm.studies.bins import DATASETS, RARE, paper_bins
from zipflm.studies.paper import comparison_row
from zipflm.studies.statistics import Interval
from zipflm.studies.study import Study, find_difference

Verdict = Literal["agrees", "disagrees", "not significant"]


@dataclass(frozen=True, kw_only=True)
class PaperFinding:
    """The difference between two models by one measure, in the paper and in this study."""

    measure: str
    model: str
    """The model that is better in the paper."""
    other: str
    paper: str
    ours: str
    verdict: Verdict

    @property
    def models(self) -> str:
        return f"{self.model} against {self.other}"


def paper_findings(study: Study) -> list[PaperFinding]:
    """Compare every pair of models that the paper also has, by every measure."""
    dataset = paper_dataset(study)
    listed = {row.label: comparison_row(dataset, row.label) for row in study.finished}
    tests = {label: row.test for label, row in listed.items() if row and row.test is not None}
    rare, after_rare = (
        {
            label: loss
            for b in paper_bins(dataset, previous=previous)
            for label, loss in b.loss.items()
            if b.name == RARE and loss is not None and label in listed
        }
        for previous in (False, True)
    )

    def perplexities(first: float, second: float) -> str:
        return f"{first:.2f} against {second:.2f}, {percent(math.log(first / second))}"

    def losses(first: float, second: float) -> str:
        text = f"{first:.2f} against {second:.2f} nats, {first - second:+.2f}"
        return text.replace("-", "\u2212")

    findings = []
    for measure, numbers, differences, describe, format_interval in (
        ("perplexity", tests, study.differences, perplexities, percent_of),
        ("loss on rare words", rare, study.rare, losses, nats_of),
        ("loss after rare words", after_rare, study.after_rare, losses, nats_of),
    ):
        for model, other in combinations(sorted(numbers, key=numbers.__getitem__), 2):
            pair = find_difference(differences, model, other)
            verdict: Verdict = "not significant"
            if pair is not None and pair.excludes_zero:
                verdict = "agrees" if pair.estimate < 0 else "disagrees"
            findings.append(
                PaperFinding(
                    measure=measure,
                    model=model,
                    other=other,
                    paper=describe(numbers[model], numbers[other]),
                    ours="no interval" if pair is None else format_interval(pair),
                    verdict=verdict,
                )
            )
    return findings


def summary(study: Study) -> str:
    """Count the verdicts of every measure.

    `perplexity: 23 of 28 pairs agree with the paper, 3 disagree, 2 not significant; ...`
    """
    verdicts: dict[str, Counter[Verdict]] = {}
    for finding in paper_findings(study):
        verdicts.setdefault(finding.measure, Counter())[finding.verdict] += 1
    return "; ".join(
        f"{measure}: {counts['agrees']} of {counts.total()} pairs agree with the paper, "
        f"{counts['disagrees']} disagree, {counts['not significant']} not significant"
        for measure, counts in verdicts.items()
    )


def percent(nats: float) -> str:
    """Format a difference in nats as a change in perplexity.

    >>> percent(math.log(0.9))
    '\u221210.0%'
    """
    change = 100 * math.expm1(min(nats, 50.0))
    return f"{change:+.1f}%".replace("-", "\u2212")


def percent_of(interval: Interval) -> str:
    """`-5.0% (-6.1 to -3.9)`."""
    low, high = (percent(end).removesuffix("%") for end in (interval.low, interval.high))
    return f"{percent(interval.estimate)} ({low} to {high})"


def nats_of(interval: Interval) -> str:
    """`-0.50 nats (-0.61 to -0.39)`."""
    text = f"{interval.estimate:+.2f} nats ({interval.low:+.2f} to {interval.high:+.2f})"
    return text.replace("-", "\u2212")


def paper_dataset(study: Study) -> str:
    """Return the paper's dataset to compare with: that of the study, or WikiText-103."""
    return study.dataset if study.dataset in DATASETS else "wikitext-103"
