"""The report as one page that needs nothing else: tables in HTML, data for the charts, style.

Template, style sheet and script are files beside this one. Everything that comes from outside is
escaped here, once, on its way into the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from zipflm.analysis import page_tables, paper
from zipflm.analysis.chart_data import chart_data
from zipflm.analysis.findings import findings, rarest
from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.headline import headline, join, unfinished
from zipflm.analysis.palette import style_of
from zipflm.analysis.paper_bins import DATASETS
from zipflm.analysis.study import Row, Study
from zipflm.analysis.tables import (
    EMPTY,
    Column,
    columns,
    context_rows,
    duration,
    finite,
    millions,
    number,
)
from zipflm.analysis.word_lists import MIN_BLOCKS, MIN_TOKENS, WordDifference
from zipflm.config import Nesterov
from zipflm.records import to_dict

_DARK_PAGE = (
    "--page:#101216;--card:#16181d;--ink:#f0f1f4;--soft:#a6abb8;--line:#2c303a;--accent:#86b6ff;"
    "--mark:#1b2130;--bad:#ff9486;--outline:#16181d;--shadow:none;"
)
CONTEXT_CAPTION = (
    "Perplexity with part of every block given as context that is not scored: each word then has "
    "at least that many words before it."
)


def render(study: Study) -> str:
    """The whole page."""
    parts = {name: _file(f"report.{name}") for name in ("css", "html", "js")}
    page = Template(parts["html"]).substitute(
        title=escape(f"{headline(study)}: {study.title}"),
        headline=escape(headline(study)),
        name=escape(study.title),
        css=parts["css"],
        script=parts["js"],
        colours=_colours(study),
        lead=escape(lead(study)),
        tiles="\n".join(_tiles(study)),
        caption=escape(caption(study)),
        comparison=_comparison(study),
        findings=_findings(study),
        statistics=page_tables.statistics(study),
        seen=page_tables.seen(study),
        split=escape(study.split),
        intervals=escape(interval_caption(study)),
        word_bins=_bin_table(study, study.word_bins, "word"),
        previous_bins=_bin_table(study, study.previous_bins, "previous word"),
        contexts=_contexts(study),
        words_caption=escape(words_caption(study)),
        words="\n".join(_word_cards(study)),
        protocol=_protocol(study),
        footer=escape(f"Made by zipflm. The paper is {paper.SOURCE}."),
        data=_embedded(finite(chart_data(study))),
    )
    return page.replace("95 %", "95\u00a0%")  # no line ends between the two


def caption(study: Study) -> str:
    """What the comparison table shows, and what its words mean."""
    text = (
        "Perplexity is exp of the mean loss per word, lower is better; sub-word models are scored "
        "per word too. Parameters that input and output share count once, with the input."
    )
    if study.differences:
        text += (
            " 'To the best' is the difference to the best model on the same text, with its 95 % "
            "interval; 'not told apart' marks models whose interval includes no difference."
        )
    if any(column.title.endswith("known words") for column in columns(study)):
        text += (
            " Unknown words are one symbol to word models, while sub-word models may have to "
            "spell them: the column 'known words' leaves them out."
        )
    if any(row.is_busy for row in study.rows):
        text += (
            " Times marked 'busy' exceed the CPU time of the training thread by more than a third: "
            "other processes held the CPU."
        )
    if any(row.paper for row in study.rows):
        text += (
            f" Columns headed 'the paper's' are its printed figures on {DATASETS[study.dataset]}, "
            "from its own training on its own machines; ours compare to them only on that text."
        )
    return text


def words_caption(study: Study) -> str:
    if not study.words:
        return "No two models have a result to compare."
    return (
        f"Mean difference in loss to {study.reference} in nats, below zero where the model is "
        f"better; beside it how often the word occurs in the training text and in the "
        f"{study.split} set. Tested were words with at least {MIN_TOKENS} occurrences in "
        f"{MIN_BLOCKS} or more of {len(study.blocks)} blocks (Student's t over blocks). Shown are "
        "those with the largest differences of all that pass, of which at most one in twenty is "
        "expected to be chance (Benjamini and Hochberg)."
    )


def interval_caption(study: Study) -> str:
    """How intervals were made."""
    return f"95 % intervals come from {study.blocks.describe()}."


def _file(name: str) -> str:
    return resources.files("zipflm.analysis").joinpath(name).read_text(encoding="utf-8")


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def _colours(study: Study) -> str:
    looks = list(style_of(study).values())
    light = "--outline:#16181d;" + "".join(
        f"--model-{i}:{look.light};--pattern-{i}:{'#ffffff' if look.is_dark else '#16181d'};"
        for i, look in enumerate(looks)
    )
    dark = _DARK_PAGE + "".join(
        f"--model-{i}:{look.dark};--pattern-{i}:#16181d;" for i, look in enumerate(looks)
    )
    # Dark on screens only: paper is white.
    return (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        ":root[data-theme=light]{color-scheme:light}}"
    )


_UNLIKE_THE_PAPER = (
    ("positions", "rotary", "rotary positions"),
    ("qk_norm", True, "normalised queries and keys"),
    ("activation", "relu_squared", "squared ReLU"),
    ("norm", "rms", "RMS norm"),
    ("final_norm", True, "a norm after the last layer"),
    ("bias", False, "no biases"),
)
"""Fields of a decoder with a value that the paper's do not have, and its name."""


def _unlike_the_paper(study: Study) -> list[str]:
    configs = [member.config for row in study.rows for member in row.members]
    found = [
        name
        for field, value, name in _UNLIKE_THE_PAPER
        if any(getattr(config.decoder, field) == value for config in configs)
    ]
    optimizers = [type(config.training.optimizer).__name__ for config in configs]
    return found + [name for name in dict.fromkeys(optimizers) if name != Nesterov.__name__]


def lead(study: Study) -> str:
    """The size of the study, its text and its recipe, in a few sentences."""
    tokens = sum(b.tokens for b in study.word_bins)
    total = len(study.rows)
    models = "1 model" if total == 1 else f"{total} models"
    if study.missing:
        models = unfinished(study)
    seeds = sorted({len(row.members) for row in study.rows})
    times = f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''} each"
    if len(seeds) > 1:
        times = f"{seeds[0]} to {seeds[-1]} seeds each"
    parts = [models, times, f"{tokens:,} words of the {study.split} set"]
    parts += [str(value) for key, value in study.facts.items() if key in ("data", "training")]
    text = ", ".join(parts) + "."
    if "held equal" in study.facts:
        equal = study.facts["held equal"]
        text += f" Held equal: {equal}."
    if unlike := _unlike_the_paper(study):
        text += f" Unlike the paper's models: {join(unlike)}."
    passes = [row.seen.passes for row in study.finished if row.seen]
    if passes:
        low, high = f"{min(passes):.2f}", f"{max(passes):.2f}"
        text += f" That is {low if low == high else f'{low} to {high}'} passes over the text."
    if study.differences and not all(pair.has_all_seeds for pair in study.differences):
        text += " One seed a model: intervals cover the choice of the text, not the training."
    return text


def _tiles(study: Study) -> Iterable[str]:
    rows = study.finished
    if study.missing:
        state, _, number_done = unfinished(study).partition(": ")
        return [_tile(number_done, state, f"missing: {join(study.missing)}")]
    if len(rows) < 2:
        return []
    best = min(rows, key=lambda row: study.headline(row).mean)
    small = min(rows, key=lambda row: row.num_params)
    timed = [row for row in rows if row.seconds]
    if any(row.doubts for row in timed):
        timed = []  # a time that is not comparable may hide the shortest
    tiles = [
        (number(study.headline(best).mean), best.label, f"lowest {study.headline_name}"),
        (millions(small.num_params), small.label, "fewest parameters"),
    ]
    if timed:
        fast = min(timed, key=lambda row: row.seconds.mean if row.seconds else 0.0)
        assert fast.seconds is not None
        tiles.append(
            (duration(fast.seconds.mean), fast.label, "shortest training, compilation left out")
        )
    rare = rarest(study.word_bins)
    if rare is not None:
        loss, label = min((loss, label) for label, loss in rare.loss.items() if loss is not None)
        what = f"lowest loss on words that training has {rare.name.replace('-', ' to ')} times"
        tiles.append((f"{loss:.2f}", label, what))
    return [_tile(*tile) for tile in tiles]


def _tile(value: str, label: str, what: str) -> str:
    return (
        f'<div class="tile"><b>{escape(value)}</b><strong>{escape(label)}</strong>'
        f"<span>{escape(what)}</span></div>"
    )


def _comparison(study: Study) -> str:
    table_columns = columns(study)
    body = "\n".join(_row(row, table_columns, study) for row in study.rows)
    return f'<table class="comparison">\n{_head(table_columns)}\n<tbody>\n{body}\n</tbody></table>'


def _head(table_columns: Sequence[Column]) -> str:
    groups: list[list[Any]] = []
    for column in table_columns:
        if groups and groups[-1][0] == column.group:
            groups[-1][1] += 1
        else:
            groups.append([column.group, 1])
    top = "".join(
        f'<th colspan="{span}" scope="colgroup">{escape(name)}</th>'
        if name
        else f'<td colspan="{span}"></td>'
        for name, span in groups
    )
    names = "".join(
        f'<th scope="col" data-column="{i}" class="{_classes(column)}">'
        f'<button type="button" title="sort">{escape(column.title)}</button></th>'
        for i, column in enumerate(table_columns)
    )
    return f"<thead><tr>{top}</tr><tr>{names}</tr></thead>"


def _classes(column: Column, *more: str) -> str:
    flags = [column.is_number and "num", column.is_paper and "paper", *more]
    return " ".join(str(flag) for flag in flags if flag)


def _row(row: Row, table_columns: Sequence[Column], study: Study) -> str:
    place = study.rows.index(row)
    swatch = f'<i class="swatch" style="background:var(--model-{place})"></i>'
    cells = []
    for i, column in enumerate(table_columns):
        text, value = escape(column.text(row)), column.value(row)
        data = f'data-column="{i}" data-value="{escape("" if value is None else str(value))}"'
        if i == 0:
            cells.append(f'<th scope="row" {data}>{swatch}{text}</th>')
        elif row.problem and not row.perplexity and column.group == "perplexity":
            # One cell for the reason instead of dashes under every perplexity.
            span = sum(other.group == "perplexity" for other in table_columns)
            if table_columns[i - 1].group != "perplexity":
                cells.append(f'<td class="problem" colspan="{span}">{escape(row.problem)}</td>')
        else:
            mark = _mark(column, row, study)
            cells.append(f'<td class="{_classes(column, mark)}" {data}>{text}</td>')
    return f'<tr data-row="{escape(row.label)}">{"".join(cells)}</tr>'


def _mark(column: Column, row: Row, study: Study) -> str:
    """`best`, or `level` where the row cannot be told from the best one."""
    if study.missing:
        return ""
    if not column.ranks or len(study.finished) < 2:
        return ""
    values = [value for other in study.finished if (value := column.value(other)) is not None]
    if column.value(row) == min(values, default=None):
        return "best"
    title = f"{study.split}, known words" if study.is_mixed else study.split
    return "level" if column.title == title and row.label in study.level_with_best else ""


def _findings(study: Study) -> str:
    found = findings(study)
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in found)
    return f'<ul class="findings">{items}</ul>' if found else ""


def _bin_table(study: Study, bins: Sequence[FrequencyBin], by: str) -> str:
    labels = [row.label for row in study.finished]
    names = ["occurrences", "different words", "in training", f"in {study.split}", *labels]
    head = "".join(f'<th scope="col" class="num">{escape(name)}</th>' for name in names)
    lines = []
    for b in bins:
        trained = EMPTY if b.train_tokens is None else f"{b.train_tokens:,}"
        numbers = [f"{b.types:,}", trained, f"{b.tokens:,}"]
        numbers += [bin_cell(b, label) for label in labels]
        cells = "".join(f'<td class="num">{escape(text)}</td>' for text in numbers)
        lines.append(f'<tr><th scope="row" class="num">{escape(b.name)}</th>{cells}</tr>')
    return (
        f'<details class="data"><summary>The numbers, by frequency of the {by}</summary>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody>'
        "</table></div></details>"
    )


def bin_cell(b: FrequencyBin, label: str) -> str:
    """A loss and its interval."""
    text = number(b.loss.get(label), 2)
    if label in b.interval:
        low, high = b.interval[label]
        text += f" ({low:.2f} to {high:.2f})"
    return text


def _contexts(study: Study) -> str:
    if not study.contexts:
        return ""
    names, rows = context_rows(study)
    head = "".join(f'<th scope="col" class="num">{escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td class="num">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<section id="context"><h2>Context</h2><p class="caption">{escape(CONTEXT_CAPTION)}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div></section>"
    )


def _word_cards(study: Study) -> Iterable[str]:
    places = {row.label: i for i, row in enumerate(study.rows)}
    for label, lists in study.words.items():
        swatch = f'<i class="swatch" style="background:var(--model-{places[label]})"></i>'
        yield (
            f'<article class="card" data-row="{escape(label)}"><h3>{swatch}{escape(label)}'
            f"<small>{lists.found:,} of {lists.tested:,} words differ</small></h3>"
            f'<div class="columns">{_word_table(study, "wins", lists.wins)}'
            f"{_word_table(study, 'losses', lists.losses)}</div></article>"
        )


def _word_table(study: Study, name: str, words: Sequence[WordDifference]) -> str:
    head = "".join(
        f'<th scope="col" class="num">{t}</th>'
        for t in ("nats", "in training", f"in {study.split}")
    )
    lines = "".join(
        f"<tr><td><code>{escape(study.vocabulary.words[word.word_id])}</code></td>"
        f'<td class="num">{word.difference:+.2f}</td><td class="num">{word.train_count:,}</td>'
        f'<td class="num">{word.tokens:,}</td></tr>'
        for word in words
    )
    lines = lines or '<tr><td colspan="4">none</td></tr>'
    return (
        f'<table><caption>{name}</caption><thead><tr><th scope="col">word</th>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table>"
    )


def protocol_rows(study: Study) -> list[dict[str, str]]:
    """Every perplexity with what it means: one row per model, seed and split."""
    return [
        {"model": row.label, "seed": str(member.seed), "split": split}
        | {"checkpoint": member.checkpoint or EMPTY}
        | {key.replace("_", " "): _plain(value) for key, value in score.protocol.by_name().items()}
        | {"perplexity": number(score.perplexity)}
        for row in study.rows
        for member in row.members
        for split, score in member.scores.items()
    ]


def _protocol(study: Study) -> str:
    facts = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(_plain(value))}</td></tr>'
        for key, value in study.facts.items()
    )
    rows = protocol_rows(study)
    names = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(row.get(name, EMPTY))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    configs = "".join(
        f"<details><summary>{escape(row.label)}: config, versions and parameters</summary>"
        f"<pre>{escape(json.dumps(_details(row), indent=1))}</pre></details>"
        for row in study.rows
    )
    return (
        f'<div class="scroll"><table class="facts"><tbody>{facts}</tbody></table></div>'
        f'<details class="data"><summary>The protocol of every perplexity</summary>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"</div></details>{configs}"
    )


def _details(row: Row) -> dict[str, Any]:
    return {
        "runs": [
            {"seed": member.seed, "run": member.run, "checkpoint": member.checkpoint}
            for member in row.members
        ],
        "parameters": dict(row.first.params),
        "versions": to_dict(row.first.versions) if row.first.versions else None,
        "config": to_dict(row.first.config),
    }


def _plain(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
