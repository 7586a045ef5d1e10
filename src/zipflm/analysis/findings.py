"""What the tables say, in a few sentences; one model is better only where its interval says so.

What the paper finds stands beside, comparison by comparison, in `paper_findings`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.headline import join
from zipflm.analysis.paper_findings import percent_of
from zipflm.analysis.study import Study
from zipflm.analysis.tables import number
from zipflm.analysis.text_blocks import FEW

RARE = ("1-10", "11-100")


def findings(study: Study) -> list[str]:
    """Sentences about the finished rows; no comparison where there is nothing to compare."""
    found = _incomplete(study)
    found += [f"{row.label} {doubt}." for row in study.rows for doubt in row.doubts]
    if len(study.finished) > 1 and not study.missing:
        found += [_overall(study), _rare(study), _previous(study), _chance(study)]
    return [sentence for sentence in found if sentence]


def _incomplete(study: Study) -> list[str]:
    """A mean over fewer seeds than were asked for must not look like one over all."""
    return [
        f"{row.label} is without some of its seeds. {row.problem[0].upper()}{row.problem[1:]}."
        for row in study.finished
        if row.problem
    ]


def _overall(study: Study) -> str:
    """The best row, who cannot be told from it, and who is next."""
    best, level = study.ranked[0], study.level_with_best
    start = (
        f"{best.label} has the lowest {study.headline_name} ({number(study.headline(best).mean)})"
    )
    if not study.differences:
        return f"{start}."
    if len(level) > 1:
        verb = "cannot be told from it"
        return f"{start}; {join(level[1:])} {verb}."
    second = study.ranked[1].label
    found = study.difference(best.label, second)
    assert found is not None  # it is better than all others, so there are intervals
    return f"{start} and is better than {second}, the next: {percent_of(found.nats)}."


def _rare(study: Study) -> str:
    """The rarest bin that has words: where the paper finds the models furthest apart."""
    b = rarest(study.word_bins)
    if b is None:
        return ""
    return (
        f"On words that occur {b.name} times in the training text ({b.tokens:,} words of the "
        f"{study.split} set), {_extremes(b)}."
    )


def _previous(study: Study) -> str:
    b = rarest(study.previous_bins)
    if b is None:
        return ""
    return f"After a word that occurs {b.name} times in the training text, {_extremes(b)}."


def rarest(bins: Sequence[FrequencyBin]) -> FrequencyBin | None:
    """The rarest words there are; None if all are frequent."""
    return next((b for b in bins if b.name in RARE and b.tokens), None)


def _extremes(b: FrequencyBin) -> str:
    ranked = sorted((loss, label) for label, loss in b.loss.items() if loss is not None)
    (_, best), (_, worst) = ranked[0], ranked[-1]
    return (
        f"{best} has the lowest loss ({_loss(b, best)}) and {worst} the highest ({_loss(b, worst)})"
    )


def _loss(b: FrequencyBin, label: str) -> str:
    text = f"{b.loss[label]:.2f} nats"
    if label not in b.interval:
        return text
    low, high = b.interval[label]
    return f"{text}, {low:.2f} to {high:.2f}"


def _chance(study: Study) -> str:
    """What the intervals cover."""
    if not study.differences:
        return "The text is too short or has too few sources for intervals: cannot tell."
    pairs = len(study.differences)
    text = (
        f"Intervals are 95 % for each comparison by itself; of {pairs} pairs that do not differ, "
        f"{max(1, round(pairs / 20))} or so would seem to."
        if pairs > 1
        else "Intervals are 95 %."
    )
    if missing := math.comb(len(study.finished), 2) - pairs:
        text += (
            f" {missing} of {pairs + missing} pairs have no interval: their difference has one "
            "value in one part of the text and another in the rest, too few sources to tell."
        )
    if len(study.blocks) < FEW:
        text += f" With only {len(study.blocks)} blocks of text they are wide and rough."
    seeds = {sum(bool(member.scores) for member in row.members) for row in study.finished}
    if min(seeds) > 1:
        return (
            f"{text} They cover the choice of the text and, with {min(seeds)} seeds a model, the "
            "randomness of training."
        )
    return (
        f"{text} They cover the choice of the text alone: "
        + ("every model was" if max(seeds) == 1 else "some models were")
        + " trained with one seed, and another seed may change the order of models that are close."
    )
