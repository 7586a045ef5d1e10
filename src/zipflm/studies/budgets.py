"""What every member gets: equal updates, text or seconds, and the same settings to choose from.

`updates` is the paper's choice. `text` gives every member the same running words: a sub-word model,
whose tokens are shorter, makes more updates. `seconds` gives every member the same time. The number
of updates is fixed before a member is trained, so that its schedule ends when the training does; a
schedule counted in updates is stretched with them.

`--grid FIELD=a,b,c` trains every member with every setting, each an ordinary run with the first
seed in a folder of its own; the setting that is best on the valid set is taken.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import cast

from zipflm.messages import quoted
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import LogLine, Report, TrainingState
from zipflm.settings import UnknownKey, override
from zipflm.studies.paper import REFERENCE
from zipflm.studies.plan import Equal, Plan, first_seeds, path_name, training_seconds
from zipflm.studies.study import Tried
from zipflm.training.schedule import stretched

CALIBRATION = "calibration"
"""Folder, inside that of a study, with the short runs that measure time."""
_CALIBRATION_UPDATES = 40
_CALIBRATION_REPORTS = 10
_DECIDED_ALREADY = tuple(
    f"training.{name}"
    for name in ("seed", "max_updates", "epochs", "patience", "tokens_per_update")
)


def with_same_text(plans: Sequence[Plan]) -> list[Plan]:
    """Plans in which every member sees as many running words as the reference does."""
    words = _words_seen(reference_of(plans))
    return [_in_updates(plan, plan.updates * words / _words_seen(plan)) for plan in plans]


def with_same_seconds(plans: Sequence[Plan], seconds: Mapping[str, float]) -> list[Plan]:
    """Plans in which every member trains as long as the reference does; `seconds` is the time of an
    update by label."""
    reference = reference_of(plans)
    budget = reference.updates * seconds[reference.label]
    return [_in_updates(plan, budget / seconds[plan.label]) for plan in plans]


def calibrations(plans: Sequence[Plan], out: Path) -> list[Plan]:
    """A short run of every label, to measure how long an update takes."""
    found = []
    for plan in first_seeds(plans):
        updates = min(_CALIBRATION_UPDATES, plan.updates)
        training = replace(
            plan.config.training,
            max_updates=updates,
            report_every=max(1, updates // _CALIBRATION_REPORTS),
            validate_every=0,
            checkpoint_every=0,
        )
        folder = out / CALIBRATION / plan.run.path.parent.name
        config = replace(plan.config, training=training)
        found.append(replace(plan, config=config, run=RunFolder(folder)))
    return found


def seconds_per_update(log: Sequence[LogLine]) -> float:
    """The median between the reports of a log, without compilation."""
    reports = [line for line in log if isinstance(line, Report)]
    pairs = list(zip(reports, reports[1:], strict=False))
    # The first few updates of a process are slower than the rest.
    return statistics.median(
        (training_seconds(after) - training_seconds(before)) / (after.update - before.update)
        for before, after in pairs[len(pairs) // 3 :]
    )


def describe_equal(equal: str, plans: Sequence[Plan]) -> str:
    """What is equal, for the reader of a report."""
    reference = reference_of(plans)
    updates = f"{reference.updates:,} updates"
    texts: dict[Equal, str] = {
        "updates": f"updates, as in the paper: every model makes {updates} of as many tokens",
        "text": (
            f"text: every model sees about {_words_seen(reference):,.0f} running words; updates "
            "follow from that"
        ),
        "seconds": (
            f"seconds: every model trains about as long as {updates} take {reference.label}, "
            "without compilation; updates follow from a short run of each that measured their "
            "time, and schedules are stretched to them"
        ),
    }
    return texts[cast(Equal, equal)]


def reference_of(plans: Sequence[Plan]) -> Plan:
    """The member whose updates set the measure."""
    words = [plan for plan in plans if plan.config.batches.unit == "word"] or list(plans)
    return next((plan for plan in words if plan.label == REFERENCE), words[0])


def _in_updates(plan: Plan, updates: float) -> Plan:
    number = max(1, round(updates))
    return plan if number == plan.updates else replace(plan, config=stretched(plan.config, number))


def _words_seen(plan: Plan) -> float:
    text = plan.data.split("train")
    return plan.updates * plan.config.training.tokens_per_update * text.words / text.tokens


Setting = tuple[str, ...]
"""One point of a grid: an override for every field."""


def parse_grid(options: Sequence[str]) -> list[Setting]:
    """All combinations of the values of every `FIELD=a,b,c`; empty without options."""
    axes: dict[str, list[str]] = {}
    for option in options:
        field, _, text = option.partition("=")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not field or not values:
            raise ValueError(
                f"--grid {quoted(option)}: write a field and the values to try, e.g. "
                "training.optimizer.lr=1e-3,3e-3"
            )
        if field in axes or len(set(values)) < len(values):
            raise ValueError(f"--grid {quoted(option)}: name every field and every value once")
        if field in _DECIDED_ALREADY:
            raise ValueError(
                f"--grid {quoted(option)}: {field} is held equal between members; see --equal and "
                "--seeds"
            )
        axes[field] = [f"{field}={value}" for value in values]
    return list(product(*axes.values())) if axes else []


def grid_plans(plans: Sequence[Plan], grid: Sequence[Setting]) -> list[Plan]:
    """Every member with every setting, seeds included; those of one member follow one another.

    ValueError if a member has no such field, or cannot take a value.
    """
    return [_with(plan, setting) for plan in plans for setting in grid]


def _with(plan: Plan, setting: Setting) -> Plan:
    try:
        config = override(plan.config, setting)
    except UnknownKey as error:
        raise ValueError(
            f"--grid: {plan.label} has no such field ({error}); tune what all members have, or "
            "choose members that have it with --factorizations"
        ) from None
    except ValueError as error:
        raise ValueError(f"--grid {' '.join(setting)}: {plan.label}: {error}") from None
    path = plan.run.path.parent / path_name("-".join(setting)) / plan.run.path.name
    # `lr=0.001, dropout=0.1`: fields by their last part.
    fields = (text.partition("=") for text in setting)
    name = ", ".join(f"{field.split('.')[-1]}={value}" for field, _, value in fields)
    return replace(plan, config=config, run=RunFolder(path), setting=name)


def choose(planned: Sequence[Plan], problems: Mapping[Path, str]) -> tuple[list[Plan], list[Tried]]:
    """The plans of the best setting of every label, in order, and all that was tried for them;
    `problems` has the paths of runs that came to nothing."""
    tries = first_seeds(planned)
    scores = {plan.run.path: _valid_perplexity(plan) for plan in tries}
    best: dict[str, Plan] = {}
    for plan in tries:
        held = best.setdefault(plan.label, plan)
        # The first of equals, and the first of all if none has a result.
        if _rank(scores[plan.run.path]) < _rank(scores[held.run.path]):
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
    return [plan for plan in planned if plan.setting == best[plan.label].setting], tried


def _valid_perplexity(plan: Plan) -> float | None:
    """On the whole valid set at the end of the run; None without one."""
    found = plan.run.checkpoints()
    if not found or found[0].update < plan.updates:
        return None
    try:
        state = found[0].state()
    except (ValueError, OSError):
        return None
    valid = state.valid if isinstance(state, TrainingState) else None
    return valid.perplexity if valid else None


def _rank(perplexity: float | None) -> float:
    return math.inf if perplexity is None or math.isnan(perplexity) else perplexity


def _seconds(plan: Plan) -> float | None:
    reports = [line for line in plan.run.log() if isinstance(line, Report)]
    return training_seconds(reports[-1]) if reports else None
