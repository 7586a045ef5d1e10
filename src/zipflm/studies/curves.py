"""`zipflm report --curves`: learning curves of several runs in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zipflm.messages import require_figure
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import LogLine, Validation
from zipflm.studies.members import learning_curve
from zipflm.units import perplexity

X_AXES = {"update": "updates", "seconds": "seconds of training, without compilation"}


def plot(runs: Sequence[Path], out: Path, x: str = "update") -> None:
    """Plot training and validation perplexity per word against `x`, a key of `X_AXES`."""
    if x not in X_AXES:
        raise ValueError(f"x={x!r}: choose from {', '.join(X_AXES)}")
    require_figure(out)
    logs = {_name(run, runs): _read(run) for run in runs}
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    highest = 0.0
    for i, (name, log) in enumerate(logs.items()):
        points, color = learning_curve(log), f"C{i % 10}"
        train = [(getattr(p, x), p.loss) for p in points]
        valid = [(getattr(p, x), p.valid_loss) for p in points]
        label = f"{name}, valid{_last_validation(log)}"
        _draw(axes, train, color=color, alpha=0.5, linewidth=1, label=f"{name}, train")
        _draw(axes, valid, color=color, marker="o", markersize=3, label=label)
        highest = max([highest, *(loss for _, loss in valid if loss is not None)])
    axes.set(xlabel=X_AXES[x], ylabel="perplexity per word", yscale="log")
    if highest:  # hide the steep start of the training curves
        axes.set_ylim(top=2 * perplexity(highest))
    axes.grid(alpha=0.3, which="both")
    for text in axes.legend().get_texts():
        text.set_parse_math(False)  # names may contain dollar signs
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def _draw(axes: Axes, points: Sequence[tuple[float, float | None]], **style: Any) -> None:
    drawn = [(x, perplexity(loss)) for x, loss in points if loss is not None]
    if drawn:
        axes.plot([x for x, _ in drawn], [y for _, y in drawn], **style)


def _name(run: Path, runs: Sequence[Path]) -> str:
    """Return the name of the folder if unique, else its path."""
    return run.name if sum(other.name == run.name for other in runs) == 1 else str(run)


def _read(run: Path) -> list[LogLine]:
    log = RunFolder(run).log()
    if not log:
        raise ValueError(f"{run}: no training log; give the folder of a run that was trained")
    return log


def _last_validation(log: Sequence[LogLine]) -> str:
    """Return the last perplexity on the full validation set, or an empty string."""
    full = [line.perplexity for line in log if isinstance(line, Validation) and line.share == 1]
    return f" {full[-1]:.1f}" if full and full[-1] is not None else ""
