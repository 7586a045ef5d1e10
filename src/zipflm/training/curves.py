"""Curves of several runs in one picture, from their logs alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zipflm.training.run_folder import read_log

X_AXES = {"update": "updates", "seconds": "seconds of training", "epoch": "passes over the data"}


def plot(runs: Sequence[Path], out: Path, x: str = "update") -> None:
    """Draw training and validation perplexity over `x` (a key of `X_AXES`) into the file `out`."""
    if x not in X_AXES:
        raise ValueError(f"x={x!r}: choose from {', '.join(X_AXES)}")
    if out.suffix.lstrip(".") not in Figure().canvas.get_supported_filetypes():
        raise ValueError(f"{out}: cannot draw into this kind of file; use .png, .svg or .pdf")
    logs = {_name(run, runs): read_log(run) for run in runs}
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, (name, entries) in enumerate(logs.items()):
        _draw(axes, name, entries, x, f"C{number % 10}")
    axes.set(xlabel=X_AXES[x], ylabel="perplexity", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def _name(run: Path, runs: Sequence[Path]) -> str:
    """The folder's own name, or its whole path where that is not enough."""
    return run.name if sum(other.name == run.name for other in runs) == 1 else str(run)


def _draw(axes: Axes, name: str, entries: Sequence[dict[str, Any]], x: str, color: str) -> None:
    train, valid = [], []
    place: dict[str, Any] = {}
    for entry in entries:
        if "valid" in entry:
            # A validation stands at the place of the report before it.
            valid.append((entry.get(x, place.get(x)), entry["valid"]["perplexity"]))
        else:
            place = entry
            train.append((entry[x], entry["perplexity"]))
    if not train and not valid:
        raise ValueError(f"{name}: its log has no reports yet")
    label = f"{name}, train"
    if train:
        axes.plot(*_columns(train), color=color, alpha=0.5, linewidth=1, label=label)
    if valid:
        label = f"{name}, valid {valid[-1][1]:.1f}" if valid[-1][1] else name
        axes.plot(*_columns(valid), color=color, marker="o", markersize=3, label=label)


def _columns(points: Sequence[tuple[Any, Any]]) -> tuple[list[float], list[float]]:
    known = [(x, y) for x, y in points if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]
