"""`zipflm report --curves`: learning curves of several runs in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zipflm.runs.folder import RunFolder, curve_of
from zipflm.runs.records import LogLine, Report, Validation

X_AXES = {"update": "updates", "seconds": "seconds of training, without compilation"}


def plot(runs: Sequence[Path], out: Path, x: str = "update") -> None:
    """Plot training and validation perplexity per word against `x`, a key of `X_AXES`."""
    if x not in X_AXES:
        raise ValueError(f"x={x!r}: choose from {', '.join(X_AXES)}")
    if out.suffix.lstrip(".") not in Figure().canvas.get_supported_filetypes():
        raise ValueError(f"{out}: unsupported file type; use .png, .svg or .pdf")
    logs = {_name(run, runs): _read(run) for run in runs}
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for i, (name, lines) in enumerate(logs.items()):
        _draw(axes, name, lines, x, f"C{i % 10}")
    axes.set(xlabel=X_AXES[x], ylabel="perplexity per word", yscale="log")
    validations = [v.perplexity for lines in logs.values() for v in curve_of(lines) if v.perplexity]
    if validations:  # hide the steep start of the training curves
        axes.set_ylim(top=2 * max(validations))
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def _name(run: Path, runs: Sequence[Path]) -> str:
    """Return the name of the folder if unique, else its path."""
    return run.name if sum(other.name == run.name for other in runs) == 1 else str(run)


def _read(run: Path) -> list[LogLine]:
    folder = RunFolder(run)
    if not folder.log_path.is_file():
        raise ValueError(f"{run}: not the folder of a training run (no {folder.log_path.name})")
    return _without_compilation(folder.log())


def _without_compilation(lines: Sequence[LogLine]) -> list[LogLine]:
    """Subtract the time spent compiling from the training time of each line."""
    compile_seconds, trained = 0.0, []
    for line in lines:
        if isinstance(line, Report):
            compile_seconds = line.compile_seconds
        trained.append(replace(line, seconds=line.seconds - compile_seconds))
    return trained


def _draw(axes: Axes, name: str, lines: Sequence[LogLine], x: str, color: str) -> None:
    reports = [line for line in lines if isinstance(line, Report)]
    full_validations = [line for line in lines if isinstance(line, Validation) and line.share == 1]
    if not lines:
        raise ValueError(f"{name}: its log is empty; train it first")
    if reports:
        label = f"{name}, train"
        axes.plot(*_points(reports, x), color=color, alpha=0.5, linewidth=1, label=label)
    if validations := curve_of(lines):
        last = full_validations[-1].perplexity if full_validations else None
        label = f"{name}, valid" if last is None else f"{name}, valid {last:.1f}"
        axes.plot(*_points(validations, x), color=color, marker="o", markersize=3, label=label)


def _points(lines: Sequence[LogLine], x: str) -> tuple[list[float], list[float]]:
    """Return x and y values of the lines that have a finite perplexity."""
    points = [(getattr(line, x), line.perplexity) for line in lines if line.perplexity is not None]
    return [x for x, _ in points], [y for _, y in points]
