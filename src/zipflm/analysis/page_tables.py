"""Tables of the page: pairs of models, the paper's findings, what was tuned, what models saw."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from zipflm.analysis.paper_bins import DATASETS, RARE
from zipflm.analysis.paper_findings import (
    Claim,
    Verdict,
    claims,
    paper_findings,
    papers_dataset,
    percent_of,
    summary,
)
from zipflm.analysis.study import Study
from zipflm.analysis.tables import EMPTY, duration, number, seen_columns

PAIRS_CAPTION = (
    "How much higher (+) or lower (\u2212) the perplexity of the row is than that of the column on "
    "the same text, in per cent, with its 95 % interval; in bold where that excludes zero."
)
SEEN_CAPTION = (
    "Words are running words of the training text, whatever tokens a model is made of; operations "
    "are additions and multiplications as the config's cost model counts them."
)
TUNING_CAPTION = (
    "Every model was trained once with each setting; the one with the lowest perplexity on the "
    "valid set was taken."
)


def statistics(study: Study) -> str:
    """Sections on pairs, on the paper and on what was tuned; empty where there is nothing."""
    return _pairs(study) + _paper(study) + _tuning(study)


def findings_caption(study: Study) -> str:
    """What the verdicts mean, and how many there are of each."""
    return (
        f"The paper's numbers are of {DATASETS[papers_dataset(study)]}; ours are the change of the "
        f"{study.headline_name}, or of the loss in nats, with 95 % intervals. Every pair of models "
        "is compared, the better one of the paper first; rare words are those that training has "
        f"{RARE.replace('-', ' to ')} times. In short, {summary(claims(study))}."
        + (
            ""
            if all(pair.has_all_seeds for pair in study.differences)
            else " A verdict is on these very models, trained with one seed: where the difference "
            "is small, other seeds may turn it."
        )
    )


def findings_rows(study: Study) -> list[list[str]]:
    """Measure, models, the paper's number, ours, verdict."""
    return [[f.measure, f.models, f.paper, f.ours, f.verdict] for f in paper_findings(study)]


def claims_rows(study: Study) -> list[list[str]]:
    """Claim, number of pairs, and how many of them have each verdict; exceptions by name."""

    def named(claim: Claim, verdict: Verdict) -> str:
        found = claim.having(verdict)
        return f"{len(found)}: {', '.join(f.models for f in found)}" if found else "0"

    return [
        [
            claim.name,
            str(len(claim.findings)),
            str(len(claim.having("agrees"))),
            named(claim, "disagrees"),
            named(claim, "cannot be told"),
        ]
        for claim in claims(study)
    ]


CLAIMS_NAMES = ["compared", "pairs", "follow the paper", "contradict it", "cannot be told"]
FINDINGS_NAMES = ["measure", "models", "the paper", "this study", "verdict"]
TUNING_NAMES = ["model", "setting", "valid perplexity", "training time", "chosen"]


def tuning_rows(study: Study) -> list[list[str]]:
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
    return [*rows, ["all", "", "", duration(total), ""]] if rows else []


def seen_rows(study: Study) -> tuple[list[str], list[list[str]]]:
    """Names and rows of what each model saw; no rows where nothing is known."""
    columns = seen_columns(study)
    rows = [row for row in study.rows if row.seen is not None]
    return [c.title for c in columns], [[c.text(row) for c in columns] for row in rows]


def seen(study: Study) -> str:
    """What each model saw, as a table."""
    names, rows = seen_rows(study)
    if not rows:
        return ""
    return (
        "<h3>What each model saw</h3>"
        f'<p class="caption">{escape(SEEN_CAPTION)}</p>{_table(names, rows)}'
    )


def _pairs(study: Study) -> str:
    if not study.differences:
        return ""
    labels = [row.label for row in study.ranked]
    head = "".join(f'<th scope="col" class="num">{escape(label)}</th>' for label in labels)
    lines = []
    for label in labels:
        cells = "".join(_pair(study, label, other) for other in labels)
        name = escape(label)
        lines.append(f'<tr data-row="{name}"><th scope="row">{name}</th>{cells}</tr>')
    return (
        f'<section id="pairs"><h2>Every pair</h2><p class="caption">{escape(PAIRS_CAPTION)}</p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Every pair">'
        '<table class="pairs">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        "</section>"
    )


def _pair(study: Study, label: str, other: str) -> str:
    found = study.difference(label, other)
    if found is None:
        return f'<td class="num">{"" if label == other else EMPTY}</td>'
    clear = found.nats.excludes_zero
    side = "" if not clear else "better" if found.nats.high < 0 else "worse"
    whole = percent_of(found.nats)
    first, second = whole.split(" (", 1)
    return f'<td class="num {side}"><b>{escape(first)}</b><small>{escape(second[:-1])}</small></td>'


def _paper(study: Study) -> str:
    rows = findings_rows(study)
    if not rows:
        return ""
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[:-1])
        + f'<td class="verdict {row[-1].split(" ")[0]}">{escape(row[-1])}</td></tr>'
        for row in rows
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in FINDINGS_NAMES)
    return (
        f'<section id="paper"><h2>The paper\u2019s findings</h2>'
        f'<p class="caption">{escape(findings_caption(study))}</p>'
        f"{_table(CLAIMS_NAMES, claims_rows(study), words=5)}"
        '<details class="data"><summary>Every pair with its numbers</summary>'
        f'<div class="scroll"><table class="verdicts"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details></section>"
    )


def _tuning(study: Study) -> str:
    rows = tuning_rows(study)
    if not rows:
        return ""
    return (
        f'<section id="tuning"><h2>Tuning</h2><p class="caption">{escape(TUNING_CAPTION)}</p>'
        f"{_table(TUNING_NAMES, rows, words=2)}</section>"
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Numbers but for the first columns, which are `words`."""

    def kind(place: int) -> str:
        return "" if place < words else ' class="num"'

    head = "".join(f'<th scope="col"{kind(i)}>{escape(n)}</th>' for i, n in enumerate(names))
    body = "".join(
        "<tr>" + "".join(f"<td{kind(i)}>{escape(c)}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'
