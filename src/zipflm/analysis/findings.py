"""What the tables say, in a few sentences, with the paper's finding of the same kind beside it.

The paper's findings are read off its own numbers, for the models that the study has too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.paper import comparison_row
from zipflm.analysis.plots import DATASETS, bins_of_paper
from zipflm.analysis.study import NOT_COMPILED, Study
from zipflm.analysis.tables import number

RARE = ("1-10", "11-100")
TIED = (("SM", "SM-T"), ("BPE", "BPE-T"), ("ADP", "ADP-T"))


def findings(study: Study) -> list[str]:
    """Sentences about the finished rows; no comparison where there is nothing to compare."""
    found = _incomplete(study)
    found += [f"{row.label} {NOT_COMPILED}." for row in study.rows if row.compiled is False]
    if len(study.finished) > 1:
        found += [_overall(study), _rare(study), _previous(study), _tying(study), _chance(study)]
    return [sentence for sentence in found if sentence]


def _incomplete(study: Study) -> list[str]:
    """A mean over fewer seeds than were asked for must not look like one over all."""
    return [
        f"{row.label} is without some of its seeds. {row.problem[0].upper()}{row.problem[1:]}."
        for row in study.finished
        if row.problem
    ]


def _overall(study: Study) -> str:
    values = {row.label: study.headline(row).mean for row in study.finished}
    ranked = [
        f"{label} ({number(values[label])})" for label in sorted(values, key=values.__getitem__)
    ]
    last = f"; {ranked[-1]} has the highest" if len(ranked) > 2 else ""
    return (
        f"{ranked[0]} has the lowest {study.headline_name}, then {ranked[1]}{last}."
        f"{_papers_order(study, _papers_perplexity(study))}"
    )


def _rare(study: Study) -> str:
    """The rarest bin that has words: where the paper finds the models furthest apart."""
    b = rarest(study.word_bins)
    if b is None:
        return ""
    return (
        f"On words that occur {b.name} times in the training text ({b.tokens:,} words of the "
        f"{study.split} set), {_extremes(b)}."
        f"{_papers_order(study, _papers_bin(study, b, previous=False))}"
    )


def _previous(study: Study) -> str:
    b = rarest(study.previous_bins)
    if b is None:
        return ""
    return (
        f"After a word that occurs {b.name} times in the training text, {_extremes(b)}."
        f"{_papers_order(study, _papers_bin(study, b, previous=True))}"
    )


def rarest(bins: Sequence[FrequencyBin]) -> FrequencyBin | None:
    """The rarest words there are; None if all are frequent."""
    return next((b for b in bins if b.name in RARE and b.tokens), None)


def _extremes(b: FrequencyBin) -> str:
    ranked = sorted((loss, label) for label, loss in b.loss.items() if loss is not None)
    (low, best), (high, worst) = ranked[0], ranked[-1]
    return f"{best} has the lowest loss ({low:.2f} nats) and {worst} the highest ({high:.2f})"


def _tying(study: Study) -> str:
    ours = {row.label: study.headline(row).mean for row in study.finished}
    changes = _changes(ours)
    if not changes:
        return ""
    theirs = ", ".join(
        f"{plain} {change}" for plain, change in _changes(_papers_perplexity(study)).items()
    )
    return (
        f"Tying input and output weights changes the {study.headline_name} of "
        f"{_join([f'{plain} by {change}' for plain, change in changes.items()])}."
        + (f" The paper on {DATASETS[_papers_dataset(study)]}: {theirs}." if theirs else "")
    )


def _changes(perplexity: Mapping[str, float]) -> dict[str, str]:
    return {
        plain: f"{100 * (perplexity[tied] / perplexity[plain] - 1):+.1f}\u00a0%"
        for plain, tied in TIED
        if plain in perplexity and tied in perplexity
    }


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _chance(study: Study) -> str:
    seeds = max(sum(bool(member.scores) for member in row.members) for row in study.rows)
    if seeds > 1:
        return (
            f"Figures after \u00b1 are standard deviations over {seeds} seeds; losses of bins and "
            "words, curves and times are means over them."
        )
    return (
        "Every model was trained with one seed, so small differences may be chance; "
        "more seeds show how much."
    )


def _papers_dataset(study: Study) -> str:
    return study.dataset if study.dataset in DATASETS else "wikitext-103"


def _papers_perplexity(study: Study) -> dict[str, float]:
    """The paper's test perplexities of the models that have a result here."""
    rows = {row.label: comparison_row(_papers_dataset(study), row.label) for row in study.finished}
    return {label: row.test for label, row in rows.items() if row and row.test is not None}


def _papers_bin(study: Study, ours: FrequencyBin, *, previous: bool) -> dict[str, float]:
    """The paper's losses in the bin of the same name, of the models that have a result here."""
    bins = bins_of_paper(_papers_dataset(study), previous=previous)
    theirs = next(b for b in bins if b.name == ours.name)
    return {label: x for label, x in theirs.loss.items() if label in ours.loss and x is not None}


def _papers_order(study: Study, values: Mapping[str, float]) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    is_part = len(values) < len(study.finished)
    which = f", which has {len(values)} of these models" if is_part else ""
    text = DATASETS[_papers_dataset(study)]
    return f" The paper on {text}{which}: {low} lowest, {high} highest."
