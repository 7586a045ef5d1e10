"""Tables of the report, shared by all output formats.

In tables with one row per model, a `Column` gives each cell as a value, for data files, and as a
string, for the report. A `Grid` contains the strings of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from zipflm.studies.bins import FrequencyBin
from zipflm.studies.findings import paper_findings, percent_of
from zipflm.studies.paper import CONTEXT, GPUS, PaperModel
from zipflm.studies.study import ModelRow, SeedMean, Study

Value = str | int | float | None
EMPTY = "-"


@dataclass(frozen=True)
class Column:
    """A column of a table with one row per model."""

    title: str
    group: str
    value: Callable[[ModelRow], Value]
    text: Callable[[ModelRow], str]
    is_number: bool = True
    is_ranked: bool = False
    """Whether to mark the lowest value as the best."""
    is_optional: bool = False
    """Whether to leave the column out if it has no values."""

    @property
    def name(self) -> str:
        return f"{self.group} {self.title}".strip()

    @property
    def key(self) -> str:
        return self.name.replace(" ", "_").replace("/", "_per_").replace(".", "")

    @property
    def is_paper(self) -> bool:
        return self.group == PAPER


PAPER = "the paper's"


def columns(study: Study) -> list[Column]:
    """Return the columns of the comparison. Optional columns without values are left out."""
    columns = [
        _column("model", "", lambda row: row.label, is_number=False),
        *_perplexity_columns(study),
        _column("all", "parameters", lambda row: row.num_params, millions),
        *(
            _column(part, "parameters", partial(ModelRow.params_of, part=part), millions)
            for part in ("input", "decoder", "output")
        ),
        _column("updates", "", "updates", "{:,.0f}".format),
        _column("words seen", "", "words_seen", "{:,.0f}".format),
        _column("time", "training", "seconds", duration),
        _column("CPU time", "training", "cpu_seconds", duration, is_optional=True),
        _column("compilation", "training", "compile_seconds", duration, is_optional=True),
        _column("tokens/s", "training", "tokens_per_second", "{:,.0f}".format),
        _column("memory", "training", lambda row: row.memory, memory),
        _column(
            "words/s",
            "streaming",
            "streaming_words_per_second",
            "{:,.0f}".format,
            is_optional=True,
        ),
        _column("input", "", lambda row: row.layers[0], is_number=False),
        _column("output", "", lambda row: row.layers[1], is_number=False),
    ]
    columns += _paper_columns(study) if any(row.paper for row in study.rows) else []
    return [c for c in columns if not c.is_optional or any(c.value(row) for row in study.rows)]


def _column(
    title: str,
    group: str,
    value: Callable[[ModelRow], Value] | str,
    form: Callable[[Any], str] = str,
    *,
    is_number: bool = True,
    is_optional: bool = False,
) -> Column:
    """Return a column. `value` is a function of the row, or the name of a field to average over
    seeds."""
    find = partial(ModelRow.mean, name=value) if isinstance(value, str) else value

    def text(row: ModelRow) -> str:
        found = find(row)
        return EMPTY if found is None else form(found)

    return Column(title, group, find, text, is_number=is_number, is_optional=is_optional)


def _perplexity_columns(study: Study) -> list[Column]:
    """Return the perplexity that ranks the models, its interval and the difference from the best
    model, then the other perplexities."""
    perplexity_columns = [_perplexity_column(study.split, known=study.is_mixed)]
    if study.differences or study.intervals:
        perplexity_columns.append(_interval_column(study))
    if study.differences:
        perplexity_columns.append(_difference_column(study))
    if study.has_unknown:
        perplexity_columns.append(_perplexity_column(study.split, known=not study.is_mixed))
    others = dict.fromkeys(split for row in study.rows for split in row.perplexity)
    return perplexity_columns + [
        _perplexity_column(split) for split in others if split != study.split
    ]


def _perplexity_column(split: str, *, known: bool = False) -> Column:
    def seed_mean(row: ModelRow) -> SeedMean | None:
        return (row.known_perplexity if known else row.perplexity).get(split)

    def value(row: ModelRow) -> Value:
        summary = seed_mean(row)
        return None if summary is None else summary.mean

    title = f"{split}, known words" if known else split
    return Column(title, "perplexity", value, lambda row: spread(seed_mean(row)), is_ranked=True)


def _interval_column(study: Study) -> Column:
    def format_interval(row: ModelRow, form: Callable[[float], str], empty: str | None) -> Any:
        interval = study.intervals.get(row.label)
        return f"{form(interval.low)} to {form(interval.high)}" if interval else empty

    return Column(
        "95% interval",
        "perplexity",
        value=lambda row: format_interval(row, "{:.6g}".format, None),
        text=lambda row: format_interval(row, number, EMPTY),
    )


def _difference_column(study: Study) -> Column:
    best, tied = study.ranked[0].label, study.tied_with_best

    def value(row: ModelRow) -> Value:
        if row.label == best:
            return 0.0
        difference = study.difference(row.label, best)
        return difference.as_perplexity.estimate - 1 if difference else None

    def text(row: ModelRow) -> str:
        if row.label == best:
            return "lowest so far" if study.missing else "best"
        difference = study.difference(row.label, best)
        if difference is None:
            return "no interval" if row.perplexity else EMPTY
        ratio = difference.as_perplexity
        change, low, high = (100 * (end - 1) for end in (ratio.estimate, ratio.low, ratio.high))
        mark = ", not significant" if row.label in tied else ""
        return f"{change:+.1f}% ({low:.1f} to {high:.1f}){mark}"

    return Column("vs. best", "perplexity", value, text)


def _paper_columns(study: Study) -> list[Column]:
    def column(title: str, value: Callable[[PaperModel], float | None], text: str) -> Column:
        return _column(
            title, PAPER, lambda row: value(row.paper) if row.paper else None, text.format
        )

    return [
        column("parameters", lambda model: float(model.params) if model.params else None, "{}M"),
        column("valid", lambda model: model.valid, "{:.2f}"),
        column("test", lambda model: model.test, "{:.2f}"),
        column(f"hours on {GPUS[study.dataset]} GPUs", lambda model: model.hours, "{}"),
    ]


def column_groups(shown: Sequence[Column]) -> list[tuple[str, int]]:
    """Return the group titles above the columns, with the number of columns in each."""
    return [(name, len(list(group))) for name, group in groupby(column.group for column in shown)]


def is_best(column: Column, row: ModelRow, study: Study) -> bool:
    """Return whether a value is the best of its column. Always False while models are missing."""
    if not column.is_ranked or study.missing:
        return False
    values = [value for other in study.finished if (value := column.value(other)) is not None]
    return column.value(row) == min(values, default=None)


class Grid(NamedTuple):
    names: list[str]
    """Column titles."""
    rows: list[list[str]]


def comparison(study: Study) -> Grid:
    """Return the comparison, with a column for problems if there are any."""
    shown = columns(study)
    if study.missing:
        shown.append(_column("problem", "", lambda row: row.problem, is_number=False))
    return Grid([c.name for c in shown], [[c.text(row) for c in shown] for row in study.rows])


def pairs(study: Study) -> Grid:
    """Return the difference between every pair of models, in bold if significant."""
    labels = [row.label for row in study.ranked]

    def cell(label: str, other: str) -> str:
        difference = study.difference(label, other)
        if difference is None:
            return "" if label == other else EMPTY
        text = percent_of(difference)
        return f"**{text}**" if difference.excludes_zero else text

    return Grid(["", *labels], [[a, *(cell(a, b) for b in labels)] for a in labels])


def bins(study: Study, chosen: Sequence[FrequencyBin]) -> Grid:
    """Return the word counts of the chosen bins and the losses of every model."""
    labels = [row.label for row in study.finished]
    names = ["frequency", "distinct words", "in training", f"in {study.split}", *labels]
    rows = [
        [
            b.name,
            f"{b.types:,}",
            EMPTY if b.train_tokens is None else f"{b.train_tokens:,}",
            f"{b.tokens:,}",
            *(bin_loss(b, label) for label in labels),
        ]
        for b in chosen
    ]
    return Grid(names, rows)


def bin_loss(b: FrequencyBin, label: str) -> str:
    """`4.21 (4.10 to 4.32)`."""
    text = number(b.loss.get(label))
    if label in b.interval:
        low, high = b.interval[label]
        text += f" ({low:.2f} to {high:.2f})"
    return text


def contexts(study: Study) -> Grid:
    """Return perplexities by context size; on WikiText-103, also those of the paper."""
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


def tuning(study: Study) -> Grid:
    """Return every setting that was tried, with the total time in the last row."""
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
    rows.append(["all", "", "", duration(total), ""])
    return Grid(["model", "setting", "validation perplexity", "training time", "chosen"], rows)


def paper_pairs(study: Study) -> Grid:
    """Compare every pair of models by every measure, in the paper and in this study."""
    return Grid(
        ["measure", "models", "the paper", "this study", "verdict"],
        [[f.measure, f.models, f.paper, f.ours, f.verdict] for f in paper_findings(study)],
    )


def scoring(study: Study) -> Grid:
    """Return the scoring protocol: one row per model, seed and split."""
    entries = [
        {"model": row.label, "seed": member.seed, "split": split}
        | {"checkpoint": member.checkpoint or EMPTY}
        | {key.replace("_", " "): value for key, value in score.protocol.by_name().items()}
        | {"perplexity": number(score.perplexity)}
        for row in study.rows
        for member in row.members
        for split, score in member.scores.items()
    ]
    names = list(dict.fromkeys(name for row in entries for name in row))
    values = [[row.get(name, EMPTY) for name in names] for row in entries]
    rows = [[f"{v:,}" if type(v) is int else str(v) for v in row] for row in values]
    return Grid(names, rows)


def number(value: float | None) -> str:
    """Format a number, or a dash if it is missing."""
    if value is None or math.isnan(value):
        return EMPTY
    if math.isinf(value):
        return "infinite"
    # Models that nearly diverged have huge perplexities.
    return f"{value:,.2f}" if abs(value) < 1e9 else f"{value:.2e}"


def spread(summary: SeedMean | None) -> str:
    """Format a mean, with the standard deviation if there are several seeds."""
    if summary is None or summary.deviation is None:
        return number(summary.mean if summary else None)
    return f"{number(summary.mean)} \u00b1 {number(summary.deviation)}"


def millions(count: int) -> str:
    """Format a parameter count. Large counts have one decimal, as in the paper."""
    if count >= 1_000_000:
        return f"{count / 1e6:.{1 if count >= 10_000_000 else 2}f}M"
    return f"{count / 1e3:.0f}K" if count >= 10_000 else f"{count:,}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return EMPTY
    if seconds < 600:
        return f"{seconds:.{1 if seconds < 100 else 0}f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"


def memory(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
