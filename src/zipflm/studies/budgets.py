"""What is held equal between the members of a study.

`updates` is the paper's choice, and the preset's. `text` gives every member the same running words:
a sub-word model, whose tokens are shorter, makes more updates. `seconds` gives every member the
same time, which is what a user pays. In all three an update has the same number of tokens for
every member (`plan`), with more batches accumulated where a device holds fewer of them.

The number of updates is fixed before a member is trained, so that its schedule ends when the
training does; a schedule counted in updates is stretched with them. The time of an update is
measured on a short run of every member, on the machine that trains it, without compilation.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast, get_args

from zipflm.runs.folder import RunFolder
from zipflm.runs.records import LogLine, Report
from zipflm.studies.build import REFERENCE
from zipflm.studies.members import training_seconds
from zipflm.studies.plan import Plan
from zipflm.training.schedule import stretched

Equal = Literal["updates", "text", "seconds"]
CALIBRATION = "calibration"
"""Name of the folder, inside that of a study, with the short runs that measure time."""
_CALIBRATION_UPDATES = 40
_CALIBRATION_REPORTS = 5


def require_known(equal: str) -> Equal:
    """The choice by its name."""
    if equal not in get_args(Equal):
        raise ValueError(f"--equal {equal}: choose from {', '.join(get_args(Equal))}")
    return cast(Equal, equal)


def with_same_text(plans: Sequence[Plan]) -> list[Plan]:
    """Plans in which every member sees as many running words as the reference does."""
    reference = reference_of(plans)
    words = reference.config.training.max_updates * _words_per_update(reference)
    return [_in_updates(plan, words / _words_per_update(plan)) for plan in plans]


def with_same_seconds(plans: Sequence[Plan], seconds: Mapping[str, float]) -> list[Plan]:
    """Plans in which every member trains as long as the reference does; `seconds` is the time of an
    update by label."""
    reference = reference_of(plans)
    budget = reference.config.training.max_updates * seconds[reference.label]
    return [_in_updates(plan, budget / seconds[plan.label]) for plan in plans]


def calibrations(plans: Sequence[Plan], out: Path) -> list[Plan]:
    """A short run of every label, to measure how long an update takes."""
    first = {plan.label: plan for plan in reversed(plans)}
    found = []
    for plan in (first[label] for label in dict.fromkeys(p.label for p in plans)):
        updates = min(_CALIBRATION_UPDATES, plan.config.training.max_updates)
        training = replace(
            plan.config.training,
            max_updates=updates,
            report_every=max(1, updates // (2 * _CALIBRATION_REPORTS)),
            validate_every=0,
            checkpoint_every=0,
        )
        config = replace(plan.config, training=training)
        folder = out / CALIBRATION / plan.run.path.parent.name
        found.append(replace(plan, config=config, run=RunFolder(folder)))
    return found


def seconds_per_update(log: Sequence[LogLine]) -> float:
    """Between the reports of a log: the median, without compilation and without what comes before
    the first report."""
    reports = [line for line in log if isinstance(line, Report)]
    pairs = list(zip(reports, reports[1:], strict=False))
    # The first few updates of a process are slower than the rest.
    settled = pairs[len(pairs) // 3 :]
    return statistics.median(
        (training_seconds(after) - training_seconds(before)) / (after.update - before.update)
        for before, after in settled
    )


def describe(equal: Equal, plans: Sequence[Plan]) -> str:
    """What is equal, for the reader of a report."""
    reference = reference_of(plans)
    updates = f"{reference.config.training.max_updates:,} updates"
    if equal == "updates":
        return f"updates, as in the paper: every model makes {updates} of as many tokens"
    if equal == "text":
        words = reference.config.training.max_updates * _words_per_update(reference)
        return f"text: every model sees about {words:,.0f} running words; updates follow from that"
    return (
        f"seconds: every model trains about as long as {updates} take {reference.label}, without "
        "compilation; updates follow from a short run of each that measured their time, and "
        "schedules are stretched to them"
    )


def reference_of(plans: Sequence[Plan]) -> Plan:
    """The member whose updates set the measure."""
    words = [plan for plan in plans if plan.config.batches.unit == "word"] or list(plans)
    return next((plan for plan in words if plan.label == REFERENCE), words[0])


def _in_updates(plan: Plan, updates: float) -> Plan:
    number = max(1, round(updates))
    if number == plan.config.training.max_updates:
        return plan
    return replace(plan, config=stretched(plan.config, number))


def _words_per_update(plan: Plan) -> float:
    text = plan.data.split("train")
    return plan.config.training.tokens_per_update * text.words / text.tokens
