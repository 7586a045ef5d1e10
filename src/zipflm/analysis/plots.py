"""Figures from tables, as SVG and PNG; bar charts are drawn by `bars`.

Every function takes a `Study` and returns a figure without touching matplotlib's global state, so
that they run in any process and beside a notebook's own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import Bbox

from zipflm.analysis.bars import INK, bar_chart, bin_label, new_axes, paper_bars
from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.palette import Style, style_of
from zipflm.analysis.paper_bins import DATASETS
from zipflm.analysis.study import Row, Study
from zipflm.files import written_whole
from zipflm.units import perplexity

_LARGEST_DRAWN = 1e130
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
    # The same study gives the same file, byte for byte, and text that can be searched.
    "svg.hashsalt": "zipflm",
    "svg.fonttype": "none",
}


def learning_curves(study: Study) -> Figure:
    """Loss on the valid set, and on the training text, against updates."""
    figure, axes = new_axes("Learning curves", "update", "loss (nats per word)")
    for row, style in _curves(study):
        points = [(p.update, p.valid_loss) for p in row.curve if p.valid_loss is not None]
        _line(axes, points, style, row.label)
        training = [(p.update, p.loss) for p in row.curve if p.loss is not None]
        axes.plot(*_columns(training), color=style.light, linewidth=0.7, alpha=0.45)
    _cut_above(axes, _valid_losses(study), lambda loss: loss)
    figure.legend(loc="outside right upper", title="valid (thin: training)")
    return figure


def perplexity_against_time(study: Study) -> Figure:
    """What a model has learned after so much training time."""
    longest = max((p.seconds for row in study.rows for p in row.curve), default=0.0)
    unit, seconds = time_unit(longest)
    figure, axes = new_axes("Perplexity against training time", unit, "valid perplexity")
    for row, style in _curves(study):
        points = [
            (p.seconds / seconds, _drawn_perplexity(p.valid_loss))
            for p in row.curve
            if p.valid_loss is not None
        ]
        _line(axes, points, style, row.label)
    axes.set_yscale("log")
    _cut_above(axes, _valid_losses(study), _drawn_perplexity)
    _plain_ticks(axes)
    figure.legend(loc="outside right upper")
    return figure


def parameters_against_perplexity(study: Study) -> Figure:
    """One point per model; low and to the left is better."""
    title, ylabel = "Parameters against perplexity", study.headline_name
    unit, size = count_unit(max((row.num_params for row in study.finished), default=0))
    figure, axes = new_axes(title, f"parameters ({unit})", ylabel)
    look = style_of(study)
    axes.set_yscale("log")
    # Rows whose perplexity is beyond all numbers have no place.
    rows = [row for row in study.finished if np.isfinite(study.headline(row).mean)]
    points = {row.label: (row.num_params / size, study.headline(row).mean) for row in rows}
    for row in rows:
        x, y = points[row.label]
        style = look[row.label]
        axes.errorbar(
            x,
            y,
            yerr=_reach(study, row),
            marker=style.marker,
            color=style.light,
            markeredgecolor=INK,
            markersize=10,
        )
    axes.margins(0.15)
    ends = {label: [float(np.log(y))] for label, (_, y) in points.items()}
    _cut_above(axes, ends, _drawn_perplexity)
    _plain_ticks(axes)
    _name_points(figure, axes, points)
    return figure


def _reach(study: Study, row: Row) -> list[list[float]] | None:
    """How far the interval reaches down and up, as matplotlib wants it."""
    found = study.headline_interval(row)
    if found is None or not np.isfinite(found.high):
        return None
    return [[found.estimate - found.low], [found.high - found.estimate]]


def figures(study: Study) -> dict[str, Callable[[], Figure]]:
    """Every figure of a study by its file name, drawn when called."""
    look = style_of(study)

    def bars(bins: Sequence[FrequencyBin], by: str) -> Figure:
        title = f"Loss by frequency of the {by} ({study.split})"
        return bar_chart(bins, look, title=title, xlabel=bin_label(by))

    drawn: dict[str, Callable[[], Figure]] = {
        "loss-by-word-frequency": lambda: bars(study.word_bins, "word"),
        "loss-by-previous-word-frequency": lambda: bars(study.previous_bins, "previous word"),
        "parameters-against-perplexity": lambda: parameters_against_perplexity(study),
    }
    if any(row.curve for row in study.rows):
        drawn["learning-curves"] = lambda: learning_curves(study)
        drawn["perplexity-against-time"] = lambda: perplexity_against_time(study)
    if study.dataset in DATASETS:
        drawn["paper-loss-by-word-frequency"] = lambda: paper_bars(study.dataset, previous=False)
        drawn["paper-loss-by-previous-word-frequency"] = lambda: paper_bars(
            study.dataset, previous=True
        )
    return drawn


def save_figures(study: Study, folder: Path) -> list[Path]:
    """Write every figure as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(_SETTINGS):  # type: ignore[arg-type]
        for name, draw in figures(study).items():
            figure = draw()
            for suffix in ("svg", "png"):
                path = folder / f"{name}.{suffix}"
                metadata = {"Date": None} if suffix == "svg" else {"Software": None}
                with written_whole(path) as unfinished:
                    figure.savefig(unfinished, dpi=160, metadata=metadata)
                written.append(path)
    return written


def time_unit(longest: float) -> tuple[str, float]:
    """The unit for times up to `longest` seconds, and its length in seconds."""
    if longest < 900:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 3 * 3600 else ("hours", 3600.0)


def count_unit(largest: int) -> tuple[str, float]:
    """The unit for parameters up to `largest`, and its size."""
    return ("millions", 1e6) if largest >= 1_000_000 else ("thousands", 1e3)


def ceiling(losses: Sequence[float]) -> float:
    """The loss above which a model is so far from the others that it would squash them.

    >>> ceiling([4.5, 4.6, 4.7, 12.0])
    5.7
    """
    middle = sorted(losses)[len(losses) // 2]
    return middle + max(1.0, 4 * (middle - min(losses)))


_MARGIN = 0.05
"""In nats, above the highest mark."""


def _valid_losses(study: Study) -> dict[str, list[float]]:
    valid = {row.label: [p.valid_loss for p in row.curve if p.valid_loss] for row in study.rows}
    return {label: losses for label, losses in valid.items() if losses}


def _drawn_perplexity(loss: float) -> float:
    """A perplexity that matplotlib can place: it needs room for margins above the largest."""
    return min(perplexity(loss), _LARGEST_DRAWN)


def _cut_above(
    axes: Axes, losses: Mapping[str, Sequence[float]], place: Callable[[float], float]
) -> None:
    """End the axis at the ceiling, and name the models that end above it.

    Early losses are cut off too, so high that nothing else would show, but nothing of the second
    half of a training.
    """
    if not losses:
        return
    limit = ceiling([own[-1] for own in losses.values()])
    visible = [own[(len(own) - 1) // 2 :] for own in losses.values() if own[-1] <= limit]
    top = max(limit, *(max(own) + _MARGIN for own in visible))
    if place(top) < axes.get_ylim()[1]:
        kept = [y for line in axes.lines for y in np.asarray(line.get_ydata()) if y <= place(top)]
        axes.set_ylim(0.97 * min(kept), place(top))
    lost = [f"{label} {place(own[-1]):.3g}" for label, own in losses.items() if own[-1] > limit]
    if lost:
        text = "above: " + ", ".join(lost)
        axes.text(0.99, 0.98, text, transform=axes.transAxes, ha="right", va="top", fontsize=8)


def _plain_ticks(axes: Axes) -> None:
    """Round numbers on a logarithmic axis, without powers of ten."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(
        MaxNLocator(6) if high < 4 * low else LogLocator(subs=(1.0, 2.0, 5.0))
    )
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _name_points(figure: Figure, axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """A name at every point, where neither a point nor another name is in the way."""
    figure.draw_without_rendering()  # Gives the axes their place on the paper.
    top = axes.get_ylim()[1]
    visible = {label: point for label, point in points.items() if point[1] <= top}
    centres = [axes.transData.transform(point) for point in visible.values()]
    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in centres]
    sides = (("left", 8), ("right", -8), ("center", 0))
    spots = [(side, x, y) for y in (4, -12, 12, -20, 20, -28) for side, x in sides]
    for label, point in visible.items():
        for side, x, y in spots:
            name = axes.annotate(label, point, (x, y), textcoords="offset points", ha=side)
            box = name.get_window_extent()
            if figure.bbox.fully_containsx(box.x1) and not box.count_overlaps(taken):
                taken.append(box)
                break
            name.remove()


def _curves(study: Study) -> list[tuple[Row, Style]]:
    look = style_of(study)
    return [(row, look[row.label]) for row in study.rows if row.curve]


def _line(axes: Axes, points: Sequence[tuple[float, float]], style: Style, label: str) -> None:
    dashes = [float(part) for part in style.dash.split()]
    (line,) = axes.plot(
        *_columns(points),
        color=style.light,
        marker=style.marker,
        markersize=4.5,
        linewidth=1.6,
        label=label,
    )
    if dashes:
        line.set_dashes([length / 1.6 for length in dashes])


def _columns(points: Sequence[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points if y is not None]
