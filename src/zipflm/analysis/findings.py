"""What the tables say, in a few sentences, with the paper's finding of the same kind beside it."""

from __future__ import annotations

from collections.abc import Sequence

from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.study import Row, Study
from zipflm.analysis.tables import number

RARE = ("1-10", "11-100")
TIED = (("SM", "SM-T"), ("BPE", "BPE-T"), ("ADP", "ADP-T"))


def findings(study: Study) -> list[str]:
    """Sentences about the finished rows; none where there is nothing to compare."""
    if len(study.finished) < 2:
        return []
    found = [_overall(study), *_rare(study), _previous(study), _tying(study), _chance(study)]
    return [sentence for sentence in found if sentence]


def _overall(study: Study) -> str:
    ranked = sorted(study.finished, key=lambda row: study.headline(row).mean)
    best, second, worst = (
        f"{row.label} ({number(study.headline(row).mean)})" for row in (*ranked[:2], ranked[-1])
    )
    return (
        f"{best} has the lowest {study.headline_name}, then {second}; {worst} has the highest. "
        "The paper on WikiText-103: ADP-T lowest, SM highest."
    )


def _rare(study: Study) -> list[str]:
    """The rarest bin that has words: where the paper finds the models furthest apart."""
    for b in study.word_bins:
        if b.name in RARE and b.tokens:
            return [
                f"On words that occur {b.name} times in the training text ({b.tokens:,} of the "
                f"{study.split} set), {_extremes(b)}. The paper on WikiText-103: ADP-T lowest, SM "
                "and BPE highest on 1-10."
            ]
    return []


def _previous(study: Study) -> str:
    for b in study.previous_bins:
        if b.name in RARE and b.tokens:
            return (
                f"After a word that occurs {b.name} times in the training text, {_extremes(b)}. "
                "The paper on WikiText-103: ADP-T lowest, then CNN."
            )
    return ""


def _extremes(b: FrequencyBin) -> str:
    ranked = sorted((loss, label) for label, loss in b.loss.items() if loss is not None)
    (low, best), (high, worst) = ranked[0], ranked[-1]
    return f"{best} has the lowest loss ({low:.2f} nats) and {worst} the highest ({high:.2f})"


def _tying(study: Study) -> str:
    rows = {row.label: row for row in study.finished}
    changes = [
        f"{plain} by {_change(study, rows[plain], rows[tied]):+.1f} %"
        for plain, tied in TIED
        if plain in rows and tied in rows
    ]
    if not changes:
        return ""
    return (
        f"Tying input and output weights changes the {study.headline_name} of "
        f"{_join(changes)}. The paper on WikiText-103: SM -6.2 %, BPE -3.3 %, ADP -5.7 %."
    )


def _change(study: Study, old: Row, new: Row) -> float:
    return 100 * (study.headline(new).mean / study.headline(old).mean - 1)


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _chance(study: Study) -> str:
    if max(len(row.members) for row in study.rows) > 1:
        return "Figures after \u00b1 are standard deviations over seeds."
    return (
        "Every model was trained with one seed, so small differences may be chance; "
        "more seeds show how much."
    )
