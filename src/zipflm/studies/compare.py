"""`zipflm compare`: train and score the members of a study, then write its report.

If a member fails, the report gives the reason and the study continues with the others. Under
torchrun, the processes agree on the outcome of every member; if they report different problems, all
stop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from zipflm.data.folder import DataFolder
from zipflm.distributed import processes
from zipflm.distributed.failures import describe_error
from zipflm.distributed.processes import Process
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.memory.specs import cache_settings
from zipflm.storage import report_full_disk, sole_writer
from zipflm.studies.budgets import (
    Setting,
    calibration_plans,
    choose_settings,
    grid_plans,
    parse_grid,
    require_same_speed,
    seconds_per_update,
    with_same_seconds,
    with_same_text,
)
from zipflm.studies.members import (
    StudyMember,
    make_member,
    measure_streaming,
    score_once,
)
from zipflm.studies.plan import (
    FULL_DISK_REMEDY,
    MEMORY_MARK,
    RESULT_NEUTRAL,
    Plan,
    Request,
    first_seeds,
    make_plans,
    open_words,
    scored_splits,
    with_validations,
)
from zipflm.studies.progress import Display, MemberProgress, measured_speed, print_plans
from zipflm.studies.protocol import describe_request, describe_training
from zipflm.studies.report import require_report_folder, write_report
from zipflm.studies.study import Study, Tried, build_study, split_text
from zipflm.training import throughput
from zipflm.training.checks import check_data, check_lines, check_run_folder, require_same_config
from zipflm.training.stream import accumulation
from zipflm.training.throughput import device_name
from zipflm.training.trainer import train as train_run

T = TypeVar("T")


@dataclass
class Runner:
    """Trains and scores plans in sequence."""

    words: DataFolder
    process: Process
    device: str | None
    validate_fully: bool
    """Whether to score the full validation set at the end of training, to choose settings. The
    members of the report are always scored on all of it."""
    measure_streaming: bool
    """Whether to measure the speed of scoring word by word."""
    stopped: bool = False
    """True after a signal. The remaining plans are not trained."""

    def train(self, plans: Sequence[Plan]) -> dict[Path, str]:
        """Train without scoring. Return the error message by run, "" on success."""
        problems: dict[Path, str] = {}
        with self._display(plans) as display:
            for plan in plans:
                if self.stopped:
                    break
                _, problem = self._try(plan, partial(self._train_rest, plan, display))
                display.set_stage(plan, self._final_stage(problem, "trained"))
                problems[plan.run.path] = problem
        return problems

    def train_and_score(self, plans: Sequence[Plan], splits: Sequence[str]) -> list[StudyMember]:
        """Train and score plans. Members that failed have a `problem`."""
        with self._display([plan for plan in plans if not plan.memory]) as display:
            return [self._train_and_score(plan, splits, display) for plan in plans]

    def _train_and_score(self, plan: Plan, splits: Sequence[str], display: Display) -> StudyMember:
        make = partial(make_member, plan, self.words, splits[-1])
        if self.stopped:
            display.set_stage(plan, "not trained")
            return make(scored=None, problem="not trained: the study was interrupted")

        def score() -> StudyMember | None:
            display.set_stage(plan, "scoring")
            options = ScoringOptions(device=self.process.device.type, memory=plan.memory)
            scored = score_once(plan.run.path, plan.data, splits, options, self.process)
            if not self.process.is_first:  # only the first process writes the report
                return None
            if self.measure_streaming and not plan.memory:
                measure_streaming(plan, scored)
            return make(scored=scored)

        member = None
        _, problem = self._try(plan, partial(self._train_rest, plan, display))
        if not problem:
            member, problem = self._try(plan, score)
        display.set_stage(plan, self._final_stage(problem, "done"))
        return member or make(scored=None, problem=problem)

    def _display(self, plans: Sequence[Plan]) -> AbstractContextManager[Display]:
        return Display(plans, sys.stdout, is_silent=not self.process.is_first).show()

    def _final_stage(self, problem: str, otherwise: str) -> str:
        return "stopped" if self.stopped else "failed" if problem else otherwise

    def _try(self, plan: Plan, work: Callable[[], T]) -> tuple[T | None, str]:
        """Call `work`. Return its result and the error it raises ("" on success), which is the same
        in all processes."""
        result, problem = None, ""
        try:
            with report_full_disk(plan.run.path, FULL_DISK_REMEDY):
                result = work()
        except (ValueError, OSError, RuntimeError) as error:
            problem = describe_error(error)
        return result, self.process.agree(problem)

    def _train_rest(self, plan: Plan, display: Display) -> None:
        """Train the remaining updates. Raises ValueError if a signal stopped the training."""
        if self._is_trained(plan):
            return
        display.set_stage(plan, "training")
        folder = plan.run.path
        folder.mkdir(parents=True, exist_ok=True)
        output = folder / f"output-{self.process.rank}.txt"
        with output.open("a", encoding="utf-8") as file, redirect_stdout(file):
            self.stopped = not train_run(
                plan.config,
                plan.data,
                folder,
                resume=True,
                keep=1,  # only the last checkpoint is compared
                device=self.device,
                full_validation=self.validate_fully,
            )
        if self.stopped:
            raise ValueError("interrupted; run the same command again to continue")

    def _is_trained(self, plan: Plan) -> bool:
        check_run_folder(plan.run, plan.config, plan.data, resume=True)
        checkpoints = plan.run.checkpoints()
        if not checkpoints or checkpoints[0].update < plan.updates:
            return False
        try:
            checkpoints[0].verify()
        except ValueError:  # the trainer reports it, and resumes from an older one if it can
            return False
        if self.process.is_first:
            with plan.run.lock():  # taking the lock cleans up after a killed process
                pass
        return True


@dataclass(frozen=True)
class FinishedStudy:
    """A study after `compare`."""

    study: Study
    page: Path | None
    """The HTML report. None if this process did not write it: only the first process does, and only
    if a member has a result or a signal stopped the study."""
    stopped: bool
    """True if a signal stopped the study."""

    @property
    def failures(self) -> dict[str, str]:
        """Problems by row label, for rows in which at least one seed has no result."""
        return {row.label: row.problem for row in self.study.rows if row.problem}


def compare(request: Request, *, device: str | None = None) -> FinishedStudy:
    """Run or resume a study.

    Members that fail while they are trained or scored are listed in `FinishedStudy.failures`.
    Errors found before that are raised, and so are failures of timing runs.
    """
    out = request.out
    with processes.started(device) as process:
        words, plans, grid = process.run_on_all(lambda: _make_plans(request, process))
        protocol = describe_request(request, plans)
        with process.enter_on_first(sole_writer(out)):
            is_timed = request.equal == "seconds"
            for plan in grid_plans(plans, grid) if grid else plans:
                # With equal times, the number of updates is not known yet.
                check_plan(plan, process, check_folder=not is_timed)
            process.run_on_first(lambda: require_report_folder(out, is_study=True))
            runner = Runner(
                words,
                process,
                device,
                validate_fully=bool(grid),
                measure_streaming=bool(request.decoders),
            )
            plans, tried = _final_plans(plans, grid, request, runner)
            for plan in plans if not runner.stopped else ():
                check_plan(plan, process)
            splits = scored_splits(words)
            dataset, _, size = request.preset.partition("/")
            subject = "Decoders" if request.decoders else "Word representations"
            study = build_study(
                runner.train_and_score(_with_memory(plans, request.memory), splits),
                split_text(words, splits[-1]),
                title=f"{subject} compared on {request.data}",
                # The paper's tables list models of the base size.
                dataset=dataset if size in ("", "base") else "",
                protocol=protocol | describe_training(words, plans, process),
                tried=tried,
            )
            page = None
            if process.is_first and (study.finished or runner.stopped):
                page = write_report(study, out)
    return FinishedStudy(study, page, runner.stopped)


def dry_run(request: Request, *, device: str | None = None) -> None:
    """Print the members that `compare` would train, with parameters and estimated times."""
    with processes.started(device) as process:
        words, plans, grid = process.run_on_all(lambda: _make_plans(request, process))
        is_timed = request.equal == "seconds"
        for plan in plans:
            check_plan(plan, process, check_folder=not is_timed and not grid)
        members = [MemberProgress(plan) for plan in plans]
        speed, basis = measured_speed(members), "based on the runs so far"
        if speed is None:
            precision = plans[0].config.training.dtype
            speed = throughput.training_speed(process.device, precision) * process.world_size
            name = device_name(process.device)
            basis = f"a rough estimate from matrix multiplication speed on {name}"
        if is_timed:
            plans = with_same_seconds(
                plans, {m.plan.label: m.work / m.plan.updates for m in members}
            )
        if grid:
            first = first_seeds(plans)
            plans = [*grid_plans(first, grid), *(plan for plan in plans if plan not in first)]
        if process.is_first:
            print_plans(plans, speed, basis)


def _make_plans(request: Request, process: Process) -> tuple[DataFolder, list[Plan], list[Setting]]:
    words = open_words(request.data)
    scored_splits(words)
    caches = [cache_settings(memory) for memory in request.memory]
    if len(set(caches)) < len(caches):
        raise ValueError(f"memory={request.memory[-1]}: given twice; give each memory once")
    if request.memory and process.world_size > 1:
        raise ValueError("memory: a cache needs the full text in one process; run without torchrun")
    grid = parse_grid(request.grid)
    plans = make_plans(request, words, on_cpu=process.device.type == "cpu")
    if request.equal == "seconds":
        require_same_speed(grid)
    if grid and "valid" not in words.splits:
        raise ValueError(f"grid: {words.path} has no validation set; prepare it with --valid")
    return words, with_same_text(plans) if request.equal == "text" else plans, grid


def _final_plans(
    plans: list[Plan], grid: Sequence[Setting], request: Request, runner: Runner
) -> tuple[list[Plan], list[Tried]]:
    """Fix the number of updates and choose tuned settings, with timing and tuning runs if needed.

    Also returns the settings that were tried.
    """
    if request.equal == "seconds":
        plans = _with_equal_time(plans, request.out, runner)
    plans = [
        replace(plan, config=with_validations(plan.config, request.overrides)) for plan in plans
    ]
    if not grid or runner.stopped:
        return plans, []
    planned = grid_plans(plans, grid)
    return choose_settings(planned, runner.train(first_seeds(planned)))


def _with_equal_time(plans: list[Plan], out: Path, runner: Runner) -> list[Plan]:
    """Return plans with equal training time, based on short timing runs.

    Returns the plans unchanged if a signal stopped the timing runs.
    """
    short = calibration_plans(plans, out)
    problems = runner.train(short)
    if runner.stopped:
        return plans
    for plan in short:
        if problem := problems[plan.run.path]:
            raise ValueError(
                f"equal=seconds: the timing run of {plan.label} failed ({problem}); leave this "
                "model out"
            )
    return with_same_seconds(plans, {p.label: seconds_per_update(p.run.log()) for p in short})


def check_plan(plan: Plan, process: Process, *, check_folder: bool = True) -> None:
    """Raise ValueError if a member cannot be trained.

    With `check_folder`, also if the run folder contains a run with different settings (settings
    that do not affect the trained model may differ).
    """
    try:
        plan.data.tokens("train")
        check_data(plan.config, plan.data)
        check_lines(plan.config, plan.data, "test")
        accumulation(plan.config, process)
        if check_folder:
            check_run_folder(plan.run, plan.config, plan.data, resume=True)
        if check_folder and plan.run.holds_a_run:
            require_same_config(
                plan.run.path,
                plan.run.config(),
                plan.config,
                can_change=RESULT_NEUTRAL.__contains__,
                otherwise=", or choose another folder for a different study",
            )
    except ValueError as error:
        raise ValueError(f"{plan.label}: {error}") from None


def _with_memory(plans: Sequence[Plan], memory: tuple[str, ...]) -> list[Plan]:
    """Return every plan, each followed by a copy that is scored with these memories, if any."""
    rows = []
    for plan in plans:
        rows.append(plan)
        if memory:
            label = MEMORY_MARK.join([plan.label, *memory])
            rows.append(replace(plan, label=label, memory=memory))
    return rows
