"""`--grid FIELD=a,b,c`: the same small grid for every member, decided on the valid set.

Every setting is an ordinary run with the first seed, in a folder of its own below its member's; the
chosen one needs no second training. So a study that is interrupted while it tunes goes on like any
other, and nobody's favourite setting decides for all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from zipflm.messages import quoted
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Report, TrainingState, Validation
from zipflm.settings import UnknownKey, override
from zipflm.studies.members import training_seconds
from zipflm.studies.plan import Plan
from zipflm.studies.study import Tried

_DECIDED_ALREADY = tuple(
    f"training.{name}"
    for name in ("seed", "max_updates", "epochs", "patience", "tokens_per_update")
)


@dataclass(frozen=True)
class Setting:
    """One point of the grid: an override for every field."""

    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """`lr=0.001, dropout=0.1`: fields by their last part."""
        return ", ".join(text.split("=")[0].split(".")[-1] + "=" + text.split("=")[1]
                         for text in self.overrides)  # fmt: skip


def parse_grid(options: Sequence[str]) -> list[Setting]:
    """All combinations of the values of every `FIELD=a,b,c`; none if nothing is to be tuned."""
    axes: list[list[str]] = []
    fields: list[str] = []
    for option in options:
        field, equals, text = option.partition("=")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not field or not equals or not values:
            raise ValueError(
                f"--grid {quoted(option)}: write a field and the values to try, e.g. "
                "training.optimizer.lr=1e-3,3e-3"
            )
        if field in fields or len(set(values)) < len(values):
            raise ValueError(f"--grid {quoted(option)}: name every field and every value once")
        if field in _DECIDED_ALREADY:
            raise ValueError(
                f"--grid {quoted(option)}: {field} is held equal between members; see --equal and "
                "--seeds"
            )
        fields.append(field)
        axes.append([f"{field}={value}" for value in values])
    return [Setting(overrides) for overrides in product(*axes)] if axes else []


def grid_plans(plans: Sequence[Plan], grid: Sequence[Setting]) -> list[Plan]:
    """Every member with every setting, seeds included; those of one member follow one another.

    ValueError if a member has no such field, or cannot take a value.
    """
    return [_with(plan, setting) for plan in plans for setting in grid]


def to_try(planned: Sequence[Plan]) -> list[Plan]:
    """Of all plans of a grid, those that decide: the ones with the first seed."""
    first = {plan.label: plan.seed for plan in reversed(planned)}
    return [plan for plan in planned if plan.seed == first[plan.label]]


def choose(planned: Sequence[Plan], problems: Mapping[Path, str]) -> tuple[list[Plan], list[Tried]]:
    """The plans of the best setting of every label, in order, and all that was tried for them;
    `problems` has the paths of runs that came to nothing."""
    tries = to_try(planned)
    scores = {plan.run.path: _score(plan) for plan in tries}
    best: dict[str, Path] = {}
    for plan in tries:
        path = plan.run.path
        held = best.setdefault(plan.label, path)
        # The first of equals, and the first of all if none has a result.
        if _rank(scores[path]) < _rank(scores[held]):
            best[plan.label] = path
    settings = {plan.label: plan.setting for plan in tries if plan.run.path in best.values()}
    tried = [
        Tried(
            label=plan.label,
            setting=plan.setting,
            perplexity=scores[plan.run.path],
            seconds=_seconds(plan),
            is_chosen=plan.run.path in best.values(),
            problem=problems.get(plan.run.path, ""),
        )
        for plan in tries
    ]
    return [plan for plan in planned if plan.setting == settings[plan.label]], tried


def _with(plan: Plan, setting: Setting) -> Plan:
    try:
        config = override(plan.config, setting.overrides)
    except UnknownKey as error:
        raise ValueError(
            f"--grid: {plan.label} has no such field ({error}); tune what all members have, or "
            "choose members that have it with --factorizations"
        ) from None
    except ValueError as error:
        raise ValueError(f"--grid {' '.join(setting.overrides)}: {plan.label}: {error}") from None
    folder = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(setting.overrides))
    path = plan.run.path.parent / folder / plan.run.path.name
    return replace(plan, config=config, run=RunFolder(path), setting=setting.name)


def _score(plan: Plan) -> float | None:
    """The perplexity on the whole valid set at the end of the run; None without one."""
    found = plan.run.checkpoints()
    if not found or found[0].update < plan.config.training.max_updates:
        return None
    try:
        state = found[0].state()
    except (ValueError, OSError):
        return None
    valid: Validation | None = state.valid if isinstance(state, TrainingState) else None
    return valid.perplexity if valid else None


def _rank(perplexity: float | None) -> float:
    is_number = perplexity is not None and not math.isnan(perplexity)
    return perplexity if is_number and perplexity is not None else math.inf


def _seconds(plan: Plan) -> float | None:
    reports = [line for line in plan.run.log() if isinstance(line, Report)]
    return training_seconds(reports[-1]) if reports else None
