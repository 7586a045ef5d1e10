"""Figures of a study. Every factorization has its own color and marker.

The patterns are those of the paper's bar charts. ADP-T and SM-T both have the grid, but that of
ADP-T is light on dark. Colors can be distinguished with any kind of color blindness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from zipflm.storage import atomic_write
from zipflm.studies.bins import FrequencyBin
from zipflm.studies.study import ModelRow, Study
from zipflm.units import perplexity


@dataclass(frozen=True)
class Style:
    """Colors, pattern and shapes of one model."""

    light: str
    """Color on a light page and in figure files."""
    dark: str
    pattern: str
    """Fill pattern of the paper."""
    hatch: str
    """The same pattern for matplotlib."""
    marker: str
    dash: str
    """SVG dash array; empty for a solid line."""
    is_dark: bool = False
    """Whether the pattern is light on dark."""


STYLES: dict[str, Style] = {
    "SM": Style("#31b3ff", "#6dc7fd", "north east lines", "////", "o", ""),
    "SM-T": Style("#124cc6", "#5782bc", "grid", "++", "s", "7 3"),
    "BPE": Style("#ddad30", "#eaca1e", "vertical lines", "|||", "^", ""),
    "BPE-T": Style("#963315", "#c94f27", "horizontal lines", "---", "v", "7 3", True),
    "ASM": Style("#00974a", "#69b36f", "dots", "...", "D", "2 3"),
    "CNN": Style("#6b367b", "#8648e5", "crosshatch", "xxx", "P", "9 3 2 3", True),
    "ADP": Style("#e765a9", "#ff91bc", "north west lines", "\\\\\\\\", "X", ""),
    "ADP-T": Style("#16181d", "#f7f7f7", "grid", "++", "*", "", True),
}


def styles_by_label(study: Study) -> dict[str, Style]:
    return choose_styles([(row.label, row.first.factorization) for row in study.rows])


def choose_styles(rows: Sequence[tuple[str, str]]) -> dict[str, Style]:
    """Return a style for every (label, factorization).

    The first row of a factorization gets its style. Further rows, as in an ablation, get unused
    styles, then combinations of a color with the shapes of another style.
    """
    chosen: dict[str, Style] = {}
    for label, factorization in rows:
        style = STYLES.get(factorization)
        if style is not None and style not in chosen.values():
            chosen[label] = style
    free = [style for style in STYLES.values() if style not in chosen.values()]
    others = [label for label, _ in rows if label not in chosen]
    chosen.update(zip(others, cycle(chain(free, _mixed_styles())), strict=False))
    return {label: chosen[label] for label, _ in rows}


def _mixed_styles() -> Iterator[Style]:
    """Combine every color with the shapes of every other style."""
    known = list(STYLES.values())
    for shift in range(1, len(known)):
        for i, style in enumerate(known):
            other = known[(i + shift) % len(known)]
            yield replace(other, light=style.light, dark=style.dark, is_dark=style.is_dark)


Point = tuple[float, float | None]
INK = "#16181d"
_MAX_DRAWN_PERPLEXITY = 1e130
_MARGIN = 0.5
"""Space above the second half of the curves, in nats."""
_SETTINGS = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": "#9a9da6",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e3e4e8",
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "text.parse_math": False,  # names may contain dollar signs
    # Reproducible files with searchable text.
    "svg.hashsalt": "zipflm",
    "svg.fonttype": "none",
}


def save_figures(study: Study, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    with matplotlib.rc_context(_SETTINGS):  # type: ignore[arg-type]
        for name, draw in figures(study).items():
            figure = draw()
            for suffix in ("svg", "png"):
                path = folder / f"{name}.{suffix}"
                metadata = {"Date": None} if suffix == "svg" else {"Software": None}
                with atomic_write(path) as unfinished:
                    figure.savefig(unfinished, dpi=160, metadata=metadata)
                saved.append(path)
    return saved


def figures(study: Study) -> dict[str, Callable[[], Figure]]:
    """Return functions that draw the figures, by file name."""
    chosen = styles_by_label(study)
    by_word = f"Loss by frequency of the word ({study.split})"
    by_previous = f"Loss by frequency of the previous word ({study.split})"
    drawn: dict[str, Callable[[], Figure]] = {
        "loss-by-word-frequency": partial(bar_chart, study.word_bins, chosen, by_word, "word"),
        "loss-by-previous-word-frequency": partial(
            bar_chart, study.previous_bins, chosen, by_previous, "previous word"
        ),
        "parameters-against-perplexity": partial(parameters_against_perplexity, study),
    }
    if any(row.curve for row in study.rows):
        drawn["learning-curves"] = partial(learning_curves, study)
        drawn["perplexity-against-time"] = partial(perplexity_against_time, study)
    return drawn


def bar_chart(
    bins: Sequence[FrequencyBin], style_by_label: Mapping[str, Style], title: str, by: str
) -> Figure:
    """Draw the loss per bin, one bar per model, with intervals. Very long bars are cut."""
    bins = [b for b in bins if any(loss is not None for loss in b.loss.values())]
    xlabel = f"frequency of the {by} in training (below: number of scored words)"
    figure, axes = _new_axes(title, xlabel, "loss (nats per word)", size=(9.0, 4.2))
    models = [label for label in style_by_label if any(b.loss.get(label) is not None for b in bins)]
    width = 0.84 / max(1, len(models))
    top = axis_limit(bins)
    if top is not None:
        axes.set_ylim(0, top)
    for i, label in enumerate(models):
        x = np.arange(len(bins)) + (i - (len(models) - 1) / 2) * width
        losses = [b.loss.get(label) or 0.0 for b in bins]
        axes.bar(
            x,
            losses,
            width,
            color=style_by_label[label].light,
            edgecolor="#ffffff" if style_by_label[label].is_dark else INK,
            hatch=style_by_label[label].hatch,
            linewidth=0,
            label=label,
        )
        # A second bar for the outline, because the pattern uses the edge color.
        axes.bar(x, losses, width, fill=False, edgecolor=INK, linewidth=0.6)
        for center, loss, b in zip(x, losses, bins, strict=True):
            if label in b.interval:
                axes.vlines(center, *b.interval[label], color=INK, linewidth=0.9)
            if top is not None and loss > top:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
                text = axes.text(center, 0.97 * top, f"{loss:.1f}", rotation=90, bbox=box)
                text.set(fontsize=6.5, ha="center", va="top")
    axes.set_xticks(range(len(bins)), [f"{b.name}\n{b.tokens:,}" for b in bins])
    axes.grid(axis="x", visible=False)
    if models:
        figure.legend(ncols=8 if max(map(len, models)) < 8 else 3, loc="outside lower center")
    return figure


def axis_limit(bins: Sequence[FrequencyBin]) -> float | None:
    """Return the upper end of the axis if the losses of unknown words would flatten the other bars,
    else None."""
    highest = {
        b.name: max([loss for loss in b.loss.values() if loss is not None] or [0.0]) for b in bins
    }
    unknown = highest.pop("UNK", 0.0)
    limit = 1.3 * max(highest.values(), default=unknown)
    return limit if unknown > limit else None


def learning_curves(study: Study) -> Figure:
    """Plot the loss on the validation set and on the training text against updates."""
    figure, axes = _new_axes("Learning curves", "update", "loss (nats per word)")
    for row, style in _curves(study):
        _line(axes, [(p.update, p.valid_loss) for p in row.curve], style, row.label)
        training = without_gaps([(p.update, p.loss) for p in row.curve])
        axes.plot(*training, color=style.light, linewidth=0.7, alpha=0.45)
    _hide_start(axes, study, lambda loss: loss)
    figure.legend(loc="outside right upper", title="validation (thin: training)")
    return figure


def perplexity_against_time(study: Study) -> Figure:
    longest = max((p.seconds for row in study.rows for p in row.curve), default=0.0)
    unit, seconds = time_unit(longest)
    figure, axes = _new_axes("Perplexity against training time", unit, "validation perplexity")
    for row, style in _curves(study):
        points = [
            (p.seconds / seconds, _plottable_perplexity(p.valid_loss))
            for p in row.curve
            if p.valid_loss is not None
        ]
        _line(axes, points, style, row.label)
    axes.set_yscale("log")
    _hide_start(axes, study, _plottable_perplexity)
    _plain_ticks(axes)
    figure.legend(loc="outside right upper")
    return figure


def parameters_against_perplexity(study: Study) -> Figure:
    """Plot one point per model. Lower and further left is better."""
    largest = max((row.num_params for row in study.finished), default=0)
    unit, size = ("millions", 1e6) if largest >= 1_000_000 else ("thousands", 1e3)
    title = "Parameters against perplexity"
    figure, axes = _new_axes(title, f"parameters ({unit})", study.headline_name)
    style_by_label = styles_by_label(study)
    axes.set_yscale("log")
    for row in study.finished:
        interval = study.intervals.get(row.label)
        errors = None
        if interval is not None and np.isfinite(interval.high):
            errors = [[interval.estimate - interval.low], [interval.high - interval.estimate]]
        axes.errorbar(
            row.num_params / size,
            study.headline(row).mean,
            yerr=errors,
            marker=style_by_label[row.label].marker,
            color=style_by_label[row.label].light,
            markeredgecolor=INK,
            markersize=10,
            linestyle="none",
            label=row.label,
        )
    axes.margins(0.15)
    _plain_ticks(axes)
    if study.finished:
        figure.legend(loc="outside right upper")
    return figure


def _new_axes(
    title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (7.2, 4.2)
) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit for times up to `longest` seconds, and the number of seconds in it."""
    if longest < 900:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 3 * 3600 else ("hours", 3600.0)


def _plottable_perplexity(loss: float) -> float:
    """Return a perplexity small enough for matplotlib to add margins."""
    return min(perplexity(loss), _MAX_DRAWN_PERPLEXITY)


def _hide_start(axes: Axes, study: Study, to_y: Callable[[float], float]) -> None:
    """End the axis above the second half of every validation curve.

    `to_y` converts a loss to a position on the axis.
    """
    curves = [[p.valid_loss for p in row.curve if p.valid_loss is not None] for row in study.rows]
    top = max((max(curve[(len(curve) - 1) // 2 :]) for curve in curves if curve), default=None)
    if top is not None and to_y(top + _MARGIN) < axes.get_ylim()[1]:
        axes.set_ylim(top=to_y(top + _MARGIN))


def _plain_ticks(axes: Axes) -> None:
    """Show plain numbers instead of powers of ten on a logarithmic axis."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(
        MaxNLocator(6) if high < 4 * low else LogLocator(subs=(1.0, 2.0, 5.0))
    )
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _curves(study: Study) -> list[tuple[ModelRow, Style]]:
    style_by_label = styles_by_label(study)
    return [(row, style_by_label[row.label]) for row in study.rows if row.curve]


def _line(axes: Axes, points: Sequence[Point], style: Style, label: str) -> None:
    (line,) = axes.plot(
        *without_gaps(points),
        color=style.light,
        marker=style.marker,
        markersize=4.5,
        linewidth=1.6,
        label=label,
    )
    if style.dash:
        line.set_dashes([float(length) / 1.6 for length in style.dash.split()])


def without_gaps(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return the x and y values of the points that have both."""
    shown = [(x, y) for x, y in points if y is not None]
    return [x for x, _ in shown], [y for _, y in shown]
