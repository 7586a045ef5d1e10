"""What the paper finds, its number and ours beside it: does this study agree?

A finding is one comparison of two models, in the paper's numbers on its own text. The study agrees
if its 95 % interval lies on the same side of zero, disagrees if it lies on the other, and cannot
tell if zero is inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from zipflm.analysis.estimates import Interval
from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.paper import comparison_row
from zipflm.analysis.paper_bins import DATASETS, bins_of_paper
from zipflm.analysis.study import Study

Verdict = Literal["agrees", "disagrees", "cannot be told"]
RARE = "1-10"

# (claim, model, the one that it is better than), in the order of the paper's argument.
_PERPLEXITY = (
    ("Adaptive input beats one table for all words", "ADP", "SM"),
    ("Adaptive input beats a fixed one in front of the same softmax", "ADP", "ASM"),
    ("An adaptive softmax beats a full one", "ASM", "SM"),
    ("A character CNN beats a fixed table in front of the same softmax", "CNN", "ASM"),
    ("Adaptive input, tied, beats the character CNN", "ADP-T", "CNN"),
    ("Adaptive input, tied, beats sub-words, tied", "ADP-T", "BPE-T"),
    ("Sub-words beat words with a full softmax", "BPE", "SM"),
    ("Tying helps a full softmax", "SM-T", "SM"),
    ("Tying helps sub-words", "BPE-T", "BPE"),
    ("Tying helps adaptive input", "ADP-T", "ADP"),
)
_RARE_WORDS = (
    ("On rare words adaptive input, tied, beats a full softmax", "ADP-T", "SM"),
    ("On rare words adaptive input, tied, beats sub-words, tied", "ADP-T", "BPE-T"),
)
_AFTER_RARE_WORDS = (
    ("After rare words adaptive input, tied, beats a full softmax", "ADP-T", "SM"),
    ("After rare words adaptive input, tied, beats the character CNN", "ADP-T", "CNN"),
)


@dataclass(frozen=True, kw_only=True)
class PaperFinding:
    """One comparison, in the paper and here."""

    claim: str
    models: str
    paper: str
    ours: str
    verdict: Verdict


def paper_findings(study: Study) -> list[PaperFinding]:
    """Those of which this study has both models, and the paper's table or figure too."""
    dataset = papers_dataset(study)
    found = []
    theirs = papers_perplexity(study)
    for claim, model, other in _PERPLEXITY:
        pair = study.difference(model, other)
        if model in theirs and other in theirs:
            change = math.log(theirs[model] / theirs[other])
            numbers = f"{theirs[model]:.2f} against {theirs[other]:.2f}"
            nats = pair.nats if pair else None
            found.append(
                _finding(claim, model, other, change, f"{numbers}, {percent(change)}", nats)
            )
    for claims, bins, previous in (
        (_RARE_WORDS, study.word_bins, False),
        (_AFTER_RARE_WORDS, study.previous_bins, True),
    ):
        printed = {b.name: b.loss for b in bins_of_paper(dataset, previous=previous)}.get(RARE, {})
        ours = next((b for b in bins if b.name == RARE), None)
        for claim, model, other in claims:
            found += _in_bin(claim, model, other, printed, ours, study.reference)
    return found


def _in_bin(
    claim: str,
    model: str,
    other: str,
    printed: Mapping[str, float | None],
    ours: FrequencyBin | None,
    reference: str,
) -> list[PaperFinding]:
    """None, or one: bins know intervals against the study's reference alone."""
    first, second = printed.get(model), printed.get(other)
    if ours is None or first is None or second is None:
        return []
    if reference not in (model, other) or model not in ours.loss or other not in ours.loss:
        return []
    ends = ours.difference.get(other if model == reference else model)
    interval = None
    if ends is not None:
        low, high = ends if other == reference else (-ends[1], -ends[0])
        mean = (ours.loss[model] or 0.0) - (ours.loss[other] or 0.0)
        interval = Interval(estimate=mean, low=low, high=high)
    text = f"{first:.2f} against {second:.2f} nats, {first - second:+.2f}"
    found = _finding(claim, model, other, first - second, text, interval, nats=True)
    return [found]


def _finding(
    claim: str,
    model: str,
    other: str,
    change: float,
    paper: str,
    ours: Interval | None,
    *,
    nats: bool = False,
) -> PaperFinding:
    verdict: Verdict = "cannot be told"
    if ours is not None and ours.excludes_zero:
        verdict = "agrees" if (ours.estimate < 0) == (change < 0) else "disagrees"
    return PaperFinding(
        claim=claim,
        models=f"{model} against {other}",
        paper=paper.replace("-", "\u2212") if nats else paper,
        ours="no interval" if ours is None else nats_of(ours) if nats else percent_of(ours),
        verdict=verdict,
    )


def percent(nats: float) -> str:
    """A difference in nats as the change of the perplexity.

    >>> percent(math.log(0.9)).replace("\\u00a0", " ")
    '\u221210.0 %'
    """
    change = 100 * math.expm1(min(nats, 50.0))
    return f"{change:+.1f}\u00a0%".replace("-", "\u2212")


def percent_of(interval: Interval) -> str:
    """`-5.0 % (-6.1 to -3.9)`."""
    low, high = (percent(end).removesuffix("\u00a0%") for end in (interval.low, interval.high))
    return f"{percent(interval.estimate)} ({low} to {high})"


def nats_of(interval: Interval) -> str:
    """`-0.50 nats (-0.61 to -0.39)`."""
    text = f"{interval.estimate:+.2f} nats ({interval.low:+.2f} to {interval.high:+.2f})"
    return text.replace("-", "\u2212")


def papers_dataset(study: Study) -> str:
    """Whose numbers stand for the paper: those on the study's text, or on WikiText-103."""
    return study.dataset if study.dataset in DATASETS else "wikitext-103"


def papers_perplexity(study: Study) -> dict[str, float]:
    """The paper's test perplexities of the models that have a result here."""
    rows = {row.label: comparison_row(papers_dataset(study), row.label) for row in study.finished}
    return {label: row.test for label, row in rows.items() if row and row.test is not None}


def count_verdicts(found: Sequence[PaperFinding]) -> str:
    """`8 agree, 2 disagree, 1 cannot be told`."""
    names = {"agrees": "agree", "disagrees": "disagree", "cannot be told": "cannot be told"}
    numbers = {verdict: sum(f.verdict == verdict for f in found) for verdict in names}
    return ", ".join(f"{numbers[verdict]} {name}" for verdict, name in names.items())
