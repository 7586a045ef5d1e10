"""Bar charts of loss by word frequency: a study's, and the paper's four from its own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zipflm.analysis.frequency_bins import FrequencyBin
from zipflm.analysis.palette import STYLES, Style
from zipflm.analysis.paper_bins import BIN_MODELS, DATASETS, bins_of_paper

INK = "#16181d"


def bar_chart(
    bins: Sequence[FrequencyBin], look: Mapping[str, Style], *, title: str, xlabel: str
) -> Figure:
    """Loss per bin, one bar per model, with its interval. A few bars that would flatten all others
    are cut, with their loss on them."""
    bins = [b for b in bins if any(loss is not None for loss in b.loss.values())]
    figure, axes = new_axes(title, xlabel, "loss (nats per word)", size=(9.0, 4.2))
    models = [label for label in look if any(b.loss.get(label) is not None for b in bins)]
    width = 0.84 / max(1, len(models))
    for i, label in enumerate(models):
        places = np.arange(len(bins)) + (i - (len(models) - 1) / 2) * width
        heights = [b.loss.get(label) or 0.0 for b in bins]
        _bars(axes, places, heights, width, look[label], label)
        for place, b in zip(places, bins, strict=True):
            if label in b.interval:
                axes.vlines(place, *b.interval[label], color=INK, linewidth=0.9)
    _break_axis(axes, bins, models, width)
    axes.set_xticks(range(len(bins)), [f"{b.name}\n{b.tokens:,}" for b in bins])
    axes.grid(axis="x", visible=False)
    if models:
        # Outside: among the bars, many models or long names would cover some.
        figure.legend(ncols=8 if max(map(len, models)) < 8 else 3, loc="outside lower center")
    return figure


def _break_axis(
    axes: Axes, bins: Sequence[FrequencyBin], models: Sequence[str], width: float
) -> None:
    """End the axis where most models do, if a few bars would flatten all others."""
    top = usual_top(bins)
    if top is None:
        return
    axes.set_ylim(0, top)
    for (place, b), (i, label) in product(enumerate(bins), enumerate(models)):
        loss = b.loss.get(label)
        if loss is not None and loss > top:
            x = place + (i - (len(models) - 1) / 2) * width
            for y in (0.93, 0.945):
                axes.plot(
                    [x - 0.6 * width, x + 0.6 * width],
                    [(y - 0.01) * top, (y + 0.01) * top],
                    color="white",
                    linewidth=1.5,
                    zorder=5,
                )
            axes.text(
                x,
                0.9 * top,
                f"{loss:.1f}",
                rotation=90,
                ha="center",
                va="top",
                fontsize=6.5,
                zorder=6,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )


def usual_top(bins: Sequence[FrequencyBin]) -> float | None:
    """Where the axis ends if a few bars would flatten all others, as on the page: a little above
    what the middle one of the models needs, unknown words left out. None if all fit."""
    highest: dict[str, float] = {}
    for b in bins:
        for label, loss in b.loss.items():
            if loss is not None and b.name != "UNK":
                highest[label] = max(highest.get(label, 1.0), *b.interval.get(label, (loss,)))
    if not highest:
        return None
    limit = 1.3 * sorted(highest.values())[len(highest) // 2]
    most = max(loss for b in bins for loss in b.loss.values() if loss is not None)
    return limit if most > 1.1 * limit else None


def paper_bars(dataset: str, *, previous: bool) -> Figure:
    """The paper's own bar chart, drawn from its numbers."""
    by = "previous word" if previous else "word"
    return bar_chart(
        bins_of_paper(dataset, previous=previous),
        {label: STYLES[label] for label in BIN_MODELS[dataset]},
        title=f"The paper's: loss by frequency of the {by}, {DATASETS[dataset]} test",
        xlabel=bin_label(by),
    )


def bin_label(by: str) -> str:
    """What stands below bins of a word, or of the `previous word`."""
    return f"occurrences of the {by} in the training text, and {by}s scored"


def new_axes(
    title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (7.2, 4.2)
) -> tuple[Figure, Axes]:
    """A figure of its own, apart from matplotlib's global state."""
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
        edgecolor="#ffffff" if style.is_dark else INK,
        hatch=style.hatch,
        linewidth=0,
        label=label,
    )
    axes.bar(places, heights, width, fill=False, edgecolor=INK, linewidth=0.6)
