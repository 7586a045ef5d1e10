"""Equal training budgets (`--equal updates|text|seconds`) and tuning (`--grid FIELD=a,b,c`).

The number of updates is fixed before a member is trained, and its schedule is stretched to match.
Tuning trains the first seed of every model with every setting, and keeps the setting with the
lowest perplexity on the validation set.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from zipflm.messages import quoted
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import LogLine, Report, Validation
from zipflm.settings import UnknownKey, override
from zipflm.studies.paper import REFERENCE
from zipflm.studies.plan import Plan, first_seeds, path_name, training_seconds
from zipflm.studies.study import Tried
from zipflm.training.schedule import stretch_schedule

CALIBRATION = "calibration"
"""Subfolder of a study with the short runs that measure the time per update."""
_CALIBRATION_UPDATES = 40
_CALIBRATION_REPORTS = 10
"""Number of log lines per calibration run."""
_NOT_TUNABLE = tuple(
    f"training.{name}"
    for name in ("seed", "max_updates", "epochs", "patience", "tokens_per_update")
)


def with_same_text(plans: Sequence[Plan]) -> list[Plan]:
    """Return plans in which every member sees the same number of running words as the reference."""
    words = _words_seen(reference_of(plans))
    return [_with_updates(plan, plan.updates * words / _words_seen(plan)) for plan in plans]


def with_same_seconds(plans: Sequence[Plan], seconds: Mapping[str, float]) -> list[Plan]:
    """Return plans that all take as long as the reference.

    `seconds` maps each label to its time per update.
    """
    reference = reference_of(plans)
    budget = reference.updates * seconds[reference.label]
    return [_with_updates(plan, budget / seconds[plan.label]) for plan in plans]


def calibration_plans(plans: Sequence[Plan], out: Path) -> list[Plan]:
    """Return the plan of a short run for every label, to measure the time per update."""
    short_runs = []
    for plan in first_seeds(plans):
        updates = max(2, min(_CALIBRATION_UPDATES, plan.updates))
        training = replace(
            plan.config.training,
            max_updates=updates,
            report_every=max(1, updates // _CALIBRATION_REPORTS),
            validate_every=0,
            checkpoint_every=0,
        )
        folder = out / CALIBRATION / plan.run.path.parent.name
        config = replace(plan.config, training=training)
        short_runs.append(replace(plan, config=config, run=RunFolder(folder)))
    return short_runs


def seconds_per_update(log: Sequence[LogLine]) -> float:
    """Return the median time per update in a log, without compilation and the first updates."""
    reports = [line for line in log if isinstance(line, Report)]
    pairs = list(zip(reports, reports[1:], strict=False))
    # The first few updates of a process are slower than the rest.
    return statistics.median(
        (training_seconds(after) - training_seconds(before)) / (after.update - before.update)
        for before, after in pairs[len(pairs) // 3 :]
    )


def describe_budget(equal: str, plans: Sequence[Plan]) -> str:
    """Describe the budget that all members share, for the report."""
    reference = reference_of(plans)
    updates = f"{reference.updates:,} updates"
    if equal == "text":
        return f"text (about {_words_seen(reference):,.0f} running words)"
    if equal == "seconds":
        return (
            f"seconds (about the time that {reference.label} takes for {updates}, without "
            "compilation; the time per update was measured in a short run of each model, and "
            "schedules are stretched to match)"
        )
    tokens = reference.config.training.tokens_per_update
    return f"updates ({updates} of {tokens:,} tokens each)"


def reference_of(plans: Sequence[Plan]) -> Plan:
    """Return the member that sets the budget: ADP-T, else the first word model, else the first."""
    words = [plan for plan in plans if plan.config.batches.unit == "word"] or list(plans)
    return next((plan for plan in words if plan.label == REFERENCE), words[0])


def _with_updates(plan: Plan, updates: float) -> Plan:
    rounded = max(1, round(updates))
    return (
        plan
        if rounded == plan.updates
        else replace(plan, config=stretch_schedule(plan.config, rounded))
    )


def _words_seen(plan: Plan) -> float:
    text = plan.data.split("train")
    return plan.updates * plan.config.training.tokens_per_update * text.words / text.tokens


Setting = tuple[str, ...]
"""A grid point: one override per field."""


def parse_grid(options: Sequence[str]) -> list[Setting]:
    """Return all combinations of the values of every `FIELD=a,b,c`."""
    axes: dict[str, list[str]] = {}
    for option in options:
        field, _, text = option.partition("=")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not field or not values:
            raise ValueError(
                f"grid={quoted(option)}: write a field and the values to try, e.g. "
                "decoder.dropout=0.1,0.2"
            )
        if field in axes or len(set(values)) < len(values):
            raise ValueError(f"grid={quoted(option)}: give every field and every value once")
        if field in _NOT_TUNABLE:
            raise ValueError(
                f"grid={quoted(option)}: {field} cannot be tuned; leave it out of the grid"
            )
        axes[field] = [f"{field}={value}" for value in values]
    return list(product(*axes.values())) if axes else []


def require_same_speed(grid: Sequence[Setting]) -> None:
    """Raise ValueError if a tuned setting may change the time per update."""
    for text in {text for setting in grid for text in setting}:
        field = text.partition("=")[0]
        if not field.startswith(("training.optimizer.", "training.schedule.")) and (
            not field.endswith("dropout")
        ):
            raise ValueError(
                f"grid={field}: may change the time per update; tune it with equal=updates or "
                "equal=text"
            )


def grid_plans(plans: Sequence[Plan], grid: Sequence[Setting]) -> list[Plan]:
    """Return every plan with every setting."""
    return [_with_setting(plan, setting) for plan in plans for setting in grid]


def _with_setting(plan: Plan, setting: Setting) -> Plan:
    try:
        config = override(plan.config, setting)
    except UnknownKey as error:
        raise ValueError(
            f"grid: {plan.label} has no such field ({error}); tune a field that all members have, "
            "or leave this member out"
        ) from None
    except ValueError as error:
        raise ValueError(f"grid={' '.join(setting)}: {plan.label}: {error}") from None
    path = plan.run.path.parent / path_name("-".join(setting)) / plan.run.path.name
    # `lr=0.001, dropout=0.1`: the last part of each field name.
    fields = (text.partition("=") for text in setting)
    name = ", ".join(f"{field.split('.')[-1]}={value}" for field, _, value in fields)
    return replace(plan, config=config, run=RunFolder(path), setting=name)


def choose_settings(
    plans: Sequence[Plan], problems: Mapping[Path, str]
) -> tuple[list[Plan], list[Tried]]:
    """Return the plans with the best setting of every label, and all settings that were tried.

    `problems` maps the path of every run that was tried to its error message, or "".
    """
    tries = first_seeds(plans)
    scores = {plan.run.path: _valid_perplexity(plan) for plan in tries}
    best: dict[str, Plan] = {}
    for plan in tries:
        best_so_far = best.setdefault(plan.label, plan)
        # The first setting wins ties, and is kept if none has a result.
        if _rank(scores[plan.run.path]) < _rank(scores[best_so_far.run.path]):
            best[plan.label] = plan
    tried = [
        Tried(
            label=plan.label,
            setting=plan.setting,
            perplexity=scores[plan.run.path],
            seconds=_seconds(plan),
            is_chosen=best[plan.label] is plan,
            problem=problems.get(plan.run.path, ""),
        )
        for plan in tries
    ]
    return [plan for plan in plans if plan.setting == best[plan.label].setting], tried


def _valid_perplexity(plan: Plan) -> float | None:
    """Return the perplexity of the final weights on the full validation set."""
    full = [
        line.perplexity
        for line in plan.run.log()
        if isinstance(line, Validation) and line.share == 1 and line.update == plan.updates
    ]
    return full[-1] if full else None


def _rank(perplexity: float | None) -> float:
    return math.inf if perplexity is None or math.isnan(perplexity) else perplexity


def _seconds(plan: Plan) -> float | None:
    reports = [line for line in plan.run.log() if isinstance(line, Report)]
    return training_seconds(reports[-1]) if reports else None
