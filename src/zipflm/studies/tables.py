"""The comparison table, column by column, for the page, Markdown, CSV and JSON alike.

A column knows its value, which goes into files, and its text, which goes before people; so no two
outputs can disagree.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby
from typing import Any

from zipflm.settings import to_dict
from zipflm.studies.paper import GPUS, PaperModel
from zipflm.studies.paper_findings import paper_findings
from zipflm.studies.study import Member, Row, Seen, Study, Summary

Value = str | int | float | None
EMPTY = "-"


@dataclass(frozen=True)
class Column:
    """One column of the comparison table."""

    title: str
    group: str
    value: Callable[[Row], Value]
    text: Callable[[Row], str]
    is_number: bool = True
    is_paper: bool = False
    ranks: bool = False
    """Whether the lowest value is the best one, and marked."""


def columns(study: Study) -> list[Column]:
    """The columns that this study can fill; the paper's come last, where it has such rows."""
    found = [
        _words("model", lambda row: row.label),
        *_perplexities(study),
        _numbers("all", "parameters", lambda row: row.num_params, millions),
        *(_parameters_of(part) for part in ("input", "decoder", "output")),
        *_times(study),
        _numbers(
            "tokens/s",
            "training",
            lambda row: _mean(row.tokens_per_second),
            "{:,.0f}".format,
            busy=True,
        ),
        _numbers("memory", "training", lambda row: row.memory, memory),
    ]
    if any(row.compiled is not None for row in study.rows):
        names = {None: EMPTY, True: "yes", False: "no"}
        found.append(_words("compiled", lambda row: names[row.compiled], group="training"))
    found.append(_words("input", lambda row: row.first.input))
    found.append(_words("output", lambda row: row.first.output))
    return found + (_paper_columns(study) if any(row.paper for row in study.rows) else [])


def _words(title: str, text: Callable[[Row], str], group: str = "") -> Column:
    return Column(title, group, text, text, is_number=False)


def _numbers(
    title: str,
    group: str,
    value: Callable[[Row], float | None],
    text: Callable[[Any], str],
    *,
    is_paper: bool = False,
    busy: bool = False,
) -> Column:
    """A column of numbers, with a dash for those that are missing; with `busy`, numbers of a busy
    machine are marked."""

    def shown(row: Row) -> str:
        found = value(row)
        mark = " (busy)" if busy and row.is_busy else ""
        return (EMPTY if found is None else text(found)) + mark

    return Column(title, group, value, shown, is_paper=is_paper)


def _mean(summary: Summary | None) -> float | None:
    return summary.mean if summary else None


def _parameters_of(part: str) -> Column:
    return _numbers(part, "parameters", lambda row: row.params_of(part), millions)


def column_groups(shown: Sequence[Column]) -> list[tuple[str, int]]:
    """Titles above the columns, each with the number of columns that it spans."""
    return [(name, len(list(of))) for name, of in groupby(column.group for column in shown)]


def is_best(column: Column, row: Row, study: Study) -> bool:
    """Whether to mark a value as the best of its column; none is while models are missing."""
    if not column.ranks or study.missing:
        return False
    values = [value for other in study.finished if (value := column.value(other)) is not None]
    return column.value(row) == min(values, default=None)


def seen_columns(study: Study) -> list[Column]:
    """What every model saw of the training text, and what that took."""

    def column(title: str, value: Callable[[Seen], float], text: Callable[[Any], str]) -> Column:
        return _numbers(title, "", lambda row: value(row.seen) if row.seen else None, text)

    return [
        _words("model", lambda row: row.label),
        column("updates", lambda seen: seen.updates, "{:,}".format),
        column("words", lambda seen: seen.words, "{:,}".format),
        column("passes over the text", lambda seen: seen.passes, "{:.2f}".format),
        column("operations", lambda seen: seen.operations, operations),
        *_times(study),
    ]


def _times(study: Study) -> list[Column]:
    """Training time, next to it the CPU time where it tells whether the machine was busy, and the
    time of compilation where there was any."""
    found = [_numbers("time", "training", lambda row: _mean(row.seconds), duration, busy=True)]
    if any(row.cpu_seconds for row in study.rows):
        found.append(_numbers("CPU time", "training", lambda row: _mean(row.cpu_seconds), duration))
    if any(row.compile_seconds and row.compile_seconds.mean > 0 for row in study.rows):
        found.append(
            _numbers("compilation", "training", lambda row: _mean(row.compile_seconds), duration)
        )
    return found


def operations(count: float) -> str:
    """`2.1e12` as `2.1 T`."""
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G")):
        if count >= size:
            return f"{count / size:.3g}\u00a0{unit}"
    return f"{count:,.0f}"


def number(value: float | None, digits: int = 2) -> str:
    """A number for people; a missing one is a dash, never a zero."""
    if value is None or math.isnan(value):
        return EMPTY
    if math.isinf(value):
        return "infinite"
    # A model that all but diverged would fill the line with digits.
    return f"{value:,.{digits}f}" if abs(value) < 1e9 else f"{value:.2e}"


def millions(count: int) -> str:
    """Parameters; of large models with as many digits as the paper gives."""
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


def spread(summary: Summary | None, digits: int = 2) -> str:
    """A mean, with the standard deviation over seeds where there are several."""
    if summary is None:
        return EMPTY
    text = number(summary.mean, digits)
    return (
        text if summary.deviation is None else f"{text} \u00b1 {number(summary.deviation, digits)}"
    )


def to_csv(study: Study) -> str:
    """One line per model, values rather than texts, problems in the last column."""
    table_columns = columns(study)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_name(column) for column in table_columns] + ["seeds", "problem"])
    for row in study.rows:
        seeds = " ".join(str(member.seed) for member in row.members)
        writer.writerow([column.value(row) for column in table_columns] + [seeds, row.problem])
    return out.getvalue()


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " "}
    | {"[": "{[}", "*": "{*}"}  # arguments of the line break before them
    | {"\u00b1": r"$\pm$", "\u2212": "$-$", "\u00a0": "~"}
)


def to_latex(study: Study, comment: str) -> str:
    """Perplexities, parameters and time as a LaTeX table, which needs the package booktabs; the
    lowest perplexities are bold unless models are missing."""
    shown = [
        column
        for column in columns(study)
        if column.ranks or f"{column.group} {column.title}".strip() in _LATEX_COLUMNS
    ]
    groups = column_groups(shown)
    ends = list(accumulate(span for _, span in groups))
    lines = [
        "% " + comment.replace("\n", " "),
        rf"\begin{{tabular}}{{{''.join('r' if c.is_number else 'l' for c in shown)}}}",
        r"\toprule",
        _latex_line(rf"\multicolumn{{{n}}}{{c}}{{{name.translate(_LATEX)}}}" for name, n in groups),
        " ".join(
            rf"\cmidrule(lr){{{end - span + 1}-{end}}}"
            for (name, span), end in zip(groups, ends, strict=True)
            if name
        ),
        _latex_line(column.title.translate(_LATEX) for column in shown),
        r"\midrule",
        *(_latex_line(_latex_cell(column, row, study) for column in shown) for row in study.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


_LATEX_COLUMNS = (
    "model",
    "perplexity 95 % interval",
    "parameters all",
    "training time",
    "the paper's test",
)


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(column: Column, row: Row, study: Study) -> str:
    text = "--" if column.text(row) == EMPTY else column.text(row).translate(_LATEX)
    return rf"\textbf{{{text}}}" if is_best(column, row, study) else text


def to_json(study: Study, made_by: str) -> dict[str, Any]:
    """Everything in the report as plain values; `made_by` says which command it belongs to."""
    table_columns = columns(study)
    found = {
        "made_by": made_by,
        "title": study.title,
        "dataset": study.dataset,
        "split": study.split,
        "reference": study.reference,
        "facts": dict(study.facts),
        "rows": [
            {_name(column): column.value(row) for column in table_columns}
            | {
                "factorization": row.first.factorization,
                "problem": row.problem,
                "params": dict(row.first.params),
                "curve": [asdict(point) for point in row.curve],
                "paper": asdict(row.paper) if row.paper else None,
                "members": [_member(member) for member in row.members],
            }
            for row in study.rows
        ],
        "loss_by_word_frequency": [asdict(b) for b in study.word_bins],
        "loss_by_previous_word_frequency": [asdict(b) for b in study.previous_bins],
        "words": {label: _words_of(study, label) for label in study.words},
        "contexts": [asdict(context) for context in study.contexts],
        "blocks": {
            "unit": study.blocks.unit,
            "number": len(study.blocks),
            "likeness": study.blocks.likeness,
        },
        "differences": [asdict(difference) for difference in study.differences],
        "paper_findings": [asdict(finding) for finding in paper_findings(study)],
        "tried": [asdict(tried) for tried in study.tried],
    }
    return dict(finite(found))


def _words_of(study: Study, label: str) -> dict[str, list[dict[str, Any]]]:
    lists = study.words[label]
    return {
        name: [
            {"word": study.vocabulary.words[w.word_id]} | asdict(w) | {"difference": w.difference}
            for w in entries
        ]
        for name, entries in (("wins", lists.wins), ("losses", lists.losses))
    }


def _member(member: Member) -> dict[str, Any]:
    return {
        "seed": member.seed,
        "run": member.run,
        "checkpoint": member.checkpoint,
        "problem": member.problem,
        "seconds": member.seconds,
        "cpu_seconds": member.cpu_seconds,
        "compile_seconds": member.compile_seconds,
        "seen": asdict(member.seen) if member.seen else None,
        "tokens_per_second": member.tokens_per_second,
        "memory": member.memory,
        "compiled": member.compiled,
        "scores": {
            split: {
                "perplexity": score.perplexity,
                "known_perplexity": score.known_perplexity,
                "loss": score.loss,
                "protocol": score.protocol.by_name(),
            }
            for split, score in member.scores.items()
        },
        "config": to_dict(member.config),
        "versions": to_dict(member.versions) if member.versions else None,
    }


def finite(value: Any) -> Any:
    """The same with None for infinity and NaN, at any depth: JSON has neither.

    >>> finite({"loss": [1.5, math.inf]})
    {'loss': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _name(column: Column) -> str:
    return f"{column.group} {column.title}".strip().replace(" ", "_").replace("/", "_per_")


def _perplexities(study: Study) -> list[Column]:
    """What ranks the rows first, with its interval and the distance to the best row."""
    first = [_perplexity(study.split, known=study.is_mixed)]
    if study.differences or study.intervals:
        first.append(_interval(study))
    if study.differences:
        first.append(_distance(study))
    if study.is_mixed:
        first.append(_perplexity(study.split))
    elif study.has_unknown:
        first.append(_perplexity(study.split, known=True))
    others = dict.fromkeys(split for row in study.rows for split in row.perplexity)
    return first + [_perplexity(split) for split in others if split != study.split]


def _interval(study: Study) -> Column:
    def text(row: Row) -> str:
        found = study.headline_interval(row) if row.perplexity else None
        return f"{number(found.low)} to {number(found.high)}" if found else EMPTY

    def value(row: Row) -> Value:
        found = study.headline_interval(row) if row.perplexity else None
        return f"{found.low:.6g} to {found.high:.6g}" if found else None

    return Column("95 % interval", "perplexity", value, text)


def _distance(study: Study) -> Column:
    """How much higher a perplexity is than the best one, on the same text."""
    best, level = study.ranked[0].label, study.level_with_best

    def value(row: Row) -> Value:
        found = study.difference(row.label, best)
        return found.nats.as_perplexity.estimate - 1 if found else None

    def text(row: Row) -> str:
        if row.label == best:
            return "lowest so far" if study.missing else "best"
        found = study.difference(row.label, best)
        if found is None:
            return "cannot tell" if row.perplexity else EMPTY
        ratio = found.nats.as_perplexity
        change, low, high = (100 * (end - 1) for end in (ratio.estimate, ratio.low, ratio.high))
        mark = ", not told apart" if row.label in level else ""
        return f"{change:+.1f} % ({low:.1f} to {high:.1f}){mark}"

    return Column("to the best", "perplexity", value, text)


def _perplexity(split: str, *, known: bool = False) -> Column:
    def summary(row: Row) -> Summary | None:
        return (row.known_perplexity if known else row.perplexity).get(split)

    def value(row: Row) -> Value:
        found = summary(row)
        return None if found is None else found.mean

    title = f"{split}, known words" if known else split
    return Column(title, "perplexity", value, lambda row: spread(summary(row)), ranks=True)


def _paper_columns(study: Study) -> list[Column]:
    def column(title: str, value: Callable[[PaperModel], float | None], text: str) -> Column:
        def found(row: Row) -> float | None:
            return value(row.paper) if row.paper else None

        return _numbers(title, "the paper's", found, text.format, is_paper=True)

    return [
        column("parameters", lambda model: float(model.params) if model.params else None, "{}M"),
        column("valid", lambda model: model.valid, "{:.2f}"),
        column("test", lambda model: model.test, "{:.2f}"),
        column(f"hours on {GPUS[study.dataset]} GPUs", lambda model: model.hours, "{}"),
    ]
