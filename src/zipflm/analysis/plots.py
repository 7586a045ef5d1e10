"""Figures from tables, as SVG and PNG; the paper's four bar charts among them.

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

from zipflm.analysis.files import written_whole
from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.palette import STYLES, Style, styles
from zipflm.analysis.paper_bins import BIN_MODELS, BINS
from zipflm.analysis.study import Row, Study

_INK = "#16181d"
DATASETS = {"wikitext-103": "WikiText-103", "billion-word": "Billion Word"}
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


def style_of(study: Study) -> dict[str, Style]:
    """The style of every row of a study."""
    return styles([(row.label, row.first.factorization) for row in study.rows])


def bar_chart(
    bins: Sequence[FrequencyBin], look: Mapping[str, Style], *, title: str, xlabel: str
) -> Figure:
    """Loss per bin, one bar per model; a bin without words has no bars and says so."""
    figure, axes = _axes(title, xlabel, "loss (nats per word)", size=(9.0, 4.2))
    models = [label for label in look if any(b.loss.get(label) is not None for b in bins)]
    width = 0.84 / max(1, len(models))
    for i, label in enumerate(models):
        places = np.arange(len(bins)) + (i - (len(models) - 1) / 2) * width
        heights = [b.loss[label] if b.loss[label] is not None else 0.0 for b in bins]
        _bars(axes, places, [h or 0.0 for h in heights], width, look[label], label)
    for place, b in enumerate(bins):
        if b.tokens == 0:
            axes.text(place, 0.1, "no words", ha="center", fontsize=7, color="#6b6f7a")
    axes.set_xticks(range(len(bins)), [f"{b.name}\n{b.tokens:,}" for b in bins])
    axes.grid(axis="x", visible=False)
    if models:
        axes.legend(ncols=4, loc="upper right")
    return figure


def learning_curves(study: Study) -> Figure:
    """Loss on the valid set, and on the training text, against updates."""
    figure, axes = _axes("Learning curves", "update", "loss (nats per word)")
    for row, style in _curves(study):
        points = [(p.update, p.valid_loss) for p in row.curve if p.valid_loss is not None]
        _line(axes, points, style, row.label)
        training = [(p.update, p.loss) for p in row.curve if p.loss is not None]
        axes.plot(*_columns(training), color=style.light, linewidth=0.7, alpha=0.45)
    axes.legend(ncols=2, title="valid (thin: training)")
    return figure


def perplexity_against_time(study: Study) -> Figure:
    """What a model has learned after so much training time."""
    figure, axes = _axes("Perplexity against training time", "seconds", "valid perplexity")
    for row, style in _curves(study):
        points = [
            (p.seconds, float(np.exp(p.valid_loss))) for p in row.curve if p.valid_loss is not None
        ]
        _line(axes, points, style, row.label)
    axes.set_yscale("log")
    axes.legend(ncols=2)
    return figure


def parameters_against_perplexity(study: Study) -> Figure:
    """One point per model; low and to the left is better."""
    title, ylabel = "Parameters against perplexity", study.headline_name
    figure, axes = _axes(title, "parameters (millions)", ylabel)
    look = style_of(study)
    for row in study.finished:
        x, y = row.num_params / 1e6, study.headline(row).mean
        style = look[row.label]
        axes.errorbar(
            x,
            y,
            yerr=study.headline(row).deviation,
            marker=style.marker,
            color=style.light,
            markeredgecolor=_INK,
            markersize=10,
        )
        axes.annotate(row.label, (x, y), xytext=(7, 5), textcoords="offset points")
    axes.margins(0.15)
    return figure


def paper_bars(dataset: str, *, previous: bool) -> Figure:
    """The paper's own bar chart, drawn from its numbers."""
    by = "previous word" if previous else "word"
    return bar_chart(
        bins_of_paper(dataset, previous=previous),
        {label: STYLES[label] for label in BIN_MODELS[dataset]},
        title=f"The paper's: loss by frequency of the {by}, {DATASETS[dataset]} test",
        xlabel=_bin_label(by),
    )


def bins_of_paper(dataset: str, *, previous: bool) -> list[FrequencyBin]:
    """The paper's bins in the shape of our own."""
    models = BIN_MODELS[dataset]
    found = []
    for b in BINS[dataset]:
        values = b.previous_loss if previous else b.loss
        loss: dict[str, float | None] = dict.fromkeys(models)
        loss.update(zip(models, values, strict=False))
        found.append(
            FrequencyBin(
                name=b.name,
                types=b.types,
                train_tokens=b.train_tokens,
                tokens=b.tokens,
                loss=loss,
            )
        )
    return found


def figures(study: Study) -> dict[str, Callable[[], Figure]]:
    """Every figure of a study by its file name, drawn when called."""
    look = style_of(study)

    def bars(bins: Sequence[FrequencyBin], by: str) -> Figure:
        title = f"Loss by frequency of the {by} ({study.split})"
        return bar_chart(bins, look, title=title, xlabel=_bin_label(by))

    drawn: dict[str, Callable[[], Figure]] = {
        "loss-by-word-frequency": lambda: bars(study.word_bins, "word"),
        "loss-by-previous-word-frequency": lambda: bars(study.previous_bins, "previous word"),
        "parameters-against-perplexity": lambda: parameters_against_perplexity(study),
    }
    if any(row.curve for row in study.rows):
        drawn["learning-curves"] = lambda: learning_curves(study)
        drawn["perplexity-against-time"] = lambda: perplexity_against_time(study)
    if study.dataset in BINS:
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


def _bin_label(by: str) -> str:
    return f"occurrences of the {by} in the training text, and {by}s scored"


def _axes(
    title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (7.2, 4.2)
) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def _bars(
    axes: Axes,
    places: np.ndarray,
    heights: Sequence[float],
    width: float,
    style: Style,
    label: str,
) -> None:
    """Colour and pattern first; the outline apart, because a pattern has the edge's colour."""
    axes.bar(
        places,
        heights,
        width,
        color=style.light,
        edgecolor="#ffffff" if style.is_dark else _INK,
        hatch=style.hatch,
        linewidth=0,
        label=label,
    )
    axes.bar(places, heights, width, fill=False, edgecolor=_INK, linewidth=0.6)


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
