"""The result of a study in one sentence, which says no more than its intervals allow."""

from __future__ import annotations

from collections.abc import Sequence

from zipflm.analysis.study import Row, Study


def headline(study: Study) -> str:
    """`ADP and ADP-T are best, 170 and 172, not distinguishable; sub-words trail (285 and 313).`"""
    if study.missing:  # no verdict: a model that is not there may be the best
        return f"{unfinished(study)}; missing: {join(study.missing)}"
    ranked = study.ranked
    best = ranked[0]
    if len(ranked) == 1:
        return f"{best.label}: {study.headline_name} {_number(study, best)}"
    level = study.level_with_best
    top = [row for row in ranked if row.label in level]
    rest = [row for row in ranked if row.label not in level]
    if not study.differences:
        return (
            f"{best.label} has the lowest {study.headline_name}, {_number(study, best)}; the text "
            "is too short or has too few sources to say more"
        )
    if not rest:
        start = f"The {len(top)} models" if len(top) > 2 else join([row.label for row in top])
        return (
            f"{start} cannot be told apart: {study.headline_name} {_number(study, top[0])} to "
            f"{_number(study, top[-1])}"
        )
    if len(top) == 1:
        text = f"{best.label} is best, {study.headline_name} {_number(study, best)}"
    else:
        numbers = join([_number(study, row) for row in top])
        text = f"{join([row.label for row in top])} are best, {numbers}, not distinguishable"
    return f"{text}; {_rest(study, rest)}"


def unfinished(study: Study) -> str:
    """`Unfinished: 5 of 8 models`; models without all of their seeds do not count."""
    total = len(study.rows)
    return f"Unfinished: {total - len(study.missing)} of {total} models"


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _rest(study: Study, rest: Sequence[Row]) -> str:
    """Who follows and who is last."""
    if len(rest) == 1:
        return f"{rest[0].label} follows with {_number(study, rest[0])}"
    pieces = [row for row in rest if row.first.config.batches.unit == "bpe"]
    others = [row for row in rest if row not in pieces]
    if pieces and others and rest[-len(pieces) :] == pieces:
        numbers = join([_number(study, row) for row in pieces])
        last = f"sub-words trail ({numbers})" if len(pieces) > 1 else ""
        last = last or f"{pieces[0].label} is last with {numbers}"
    else:
        last = f"{rest[-1].label} is last with {_number(study, rest[-1])}"
    return f"{rest[0].label} follows with {_number(study, rest[0])}, {last}"


def _number(study: Study, row: Row) -> str:
    """Three digits, or more where a perplexity has more before its point."""
    value = study.headline(row).mean
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
