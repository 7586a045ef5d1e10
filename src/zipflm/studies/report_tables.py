"""Tables of the report as text, for the page and for Markdown; the comparison is in `tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from zipflm.studies.bins import FrequencyBin
from zipflm.studies.paper import CONTEXT
from zipflm.studies.paper_findings import Claim, Verdict, claims, paper_findings, percent_of
from zipflm.studies.study import Study
from zipflm.studies.tables import EMPTY, columns, duration, number, seen_columns


class Grid(NamedTuple):
    """Names of columns, and rows of as many cells."""

    names: list[str]
    rows: list[list[str]]


def comparison(study: Study) -> Grid:
    """The comparison, with a column for problems where there are any."""
    shown = columns(study)
    names = [f"{column.group} {column.title}".strip() for column in shown]
    rows = [[column.text(row) for column in shown] for row in study.rows]
    if study.missing:
        names.append("problem")
        rows = [[*cells, row.problem] for cells, row in zip(rows, study.rows, strict=True)]
    return Grid(names, rows)


def pairs(study: Study) -> Grid:
    """The difference of every pair of models, in bold where it excludes zero."""
    labels = [row.label for row in study.ranked]

    def cell(label: str, other: str) -> str:
        found = study.difference(label, other)
        if found is None:
            return "" if label == other else EMPTY
        text = percent_of(found.nats)
        return f"**{text}**" if found.nats.excludes_zero else text

    return Grid(["", *labels], [[a, *(cell(a, b) for b in labels)] for a in labels])


def bins(study: Study, chosen: Sequence[FrequencyBin]) -> Grid:
    """Number of words and loss of every model, bin by bin."""
    labels = [row.label for row in study.finished]
    names = ["occurrences", "different words", "in training", f"in {study.split}", *labels]
    rows = [
        [
            b.name,
            f"{b.types:,}",
            EMPTY if b.train_tokens is None else f"{b.train_tokens:,}",
            f"{b.tokens:,}",
            *(_loss(b, label) for label in labels),
        ]
        for b in chosen
    ]
    return Grid(names, rows)


def _loss(b: FrequencyBin, label: str) -> str:
    text = number(b.loss.get(label), 2)
    if label in b.interval:
        low, high = b.interval[label]
        text += f" ({low:.2f} to {high:.2f})"
    return text


def contexts(study: Study) -> Grid:
    """Training block against context, the paper's perplexities beside ours."""
    splits = list(dict.fromkeys(split for c in study.contexts for split in c.perplexity))
    names = ["model", "train block", "block", "context", *splits]
    rows = [
        [c.label, f"{c.train_block:,}", f"{c.block:,}", f"{c.context:,}"]
        + [number(c.perplexity.get(split)) for split in splits]
        for c in study.contexts
    ]
    if study.dataset == "wikitext-103":
        names += ["the paper's valid", "the paper's test"]
        for row, c in zip(rows, study.contexts, strict=True):
            theirs = CONTEXT.get((c.train_block, c.context)) if c.label == "ADP-T" else None
            row += [number(value) for value in theirs] if theirs else [EMPTY, EMPTY]
    return Grid(names, rows)


def seen(study: Study) -> Grid:
    """What each model saw of the training text; no rows where nothing is known."""
    shown = seen_columns(study)
    rows = [row for row in study.rows if row.seen is not None]
    return Grid([c.title for c in shown], [[c.text(row) for c in shown] for row in rows])


def tuning(study: Study) -> Grid:
    """Every setting that was tried, and at the end what all of it took."""
    rows = [
        [
            tried.label,
            tried.setting,
            tried.problem or number(tried.perplexity),
            duration(tried.seconds),
            "yes" if tried.is_chosen else "",
        ]
        for tried in study.tried
    ]
    total = sum(tried.seconds or 0.0 for tried in study.tried)
    rows += [["all", "", "", duration(total), ""]] if rows else []
    return Grid(["model", "setting", "valid perplexity", "training time", "chosen"], rows)


def paper_claims(study: Study) -> Grid:
    """How many pairs of each claim have each verdict; exceptions by name."""

    def named(claim: Claim, verdict: Verdict) -> str:
        found = claim.having(verdict)
        return f"{len(found)}: {', '.join(f.models for f in found)}" if found else "0"

    rows = [
        [
            claim.name,
            str(len(claim.findings)),
            str(len(claim.having("agrees"))),
            named(claim, "disagrees"),
            named(claim, "cannot be told"),
        ]
        for claim in claims(study)
    ]
    return Grid(["compared", "pairs", "follow the paper", "contradict it", "cannot be told"], rows)


def paper_pairs(study: Study) -> Grid:
    """Every pair of models by every measure, in the paper and here."""
    return Grid(
        ["measure", "models", "the paper", "this study", "verdict"],
        [[f.measure, f.models, f.paper, f.ours, f.verdict] for f in paper_findings(study)],
    )


def protocol(study: Study) -> Grid:
    """What every perplexity means: one row per model, seed and split."""
    found = [
        {"model": row.label, "seed": str(member.seed), "split": split}
        | {"checkpoint": member.checkpoint or EMPTY}
        | {key.replace("_", " "): _plain(value) for key, value in score.protocol.by_name().items()}
        | {"perplexity": number(score.perplexity)}
        for row in study.rows
        for member in row.members
        for split, score in member.scores.items()
    ]
    names = list(dict.fromkeys(key for row in found for key in row))
    return Grid(names, [[row.get(name, EMPTY) for name in names] for row in found])


def _plain(value: Any) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)
