"""All members are shown while a study runs, on a terminal and elsewhere."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from analysis.example_study import study as example_study
from comparison.studies import PretendTrainer, plans_for
from rich.console import Console

from zipflm.analysis.study import Study
from zipflm.analysis.tables import number
from zipflm.comparison.plan import Plan, Request
from zipflm.comparison.progress import Display, State, print_table
from zipflm.evaluation.watching import named, tell
from zipflm.training.advice import in_words


@pytest.fixture(scope="module")
def plans(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Plan]:
    request = Request(data=data, preset="tiny", out=tmp_path_factory.mktemp("study"))
    plans = plans_for(request)
    PretendTrainer()(plans[0].config, plans[0].data, plans[0].run.path)
    return plans


def test_the_table_shows_every_member_and_how_far_it_is(plans: list[Plan]) -> None:
    display = Display(plans, io.StringIO(), is_silent=True)
    display.enter(plans[0], "training")
    out = io.StringIO()
    Console(file=out, width=140).print(display.table())
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines[1:9]] == [plan.label for plan in plans]
    assert all(part in lines[1] for part in ("200/200", "4.000", "30.0", "2.0 s", "training"))
    assert "waiting" in lines[2] and "0/200" in lines[2]


def test_a_state_reads_the_log_and_lives_without_one(plans: list[Plan]) -> None:
    state = State(plans[0])
    state.read()
    assert (state.update, state.loss, state.perplexity) == (200, 4.0, 30.0)
    empty = State(plans[1])
    empty.read()
    assert empty.update == 0


def shown(display: Display) -> str:
    out = io.StringIO()
    Console(file=out, width=140).print(display.table())
    return out.getvalue()


def test_the_time_left_is_that_of_the_members_before_by_their_work(plans: list[Plan]) -> None:
    """The first member took two seconds for all its updates; the others need as long for as much
    work, and those that will not go on need nothing."""
    display = Display(plans, io.StringIO(), is_silent=True)
    assert display.left() is None, "nothing is known yet"
    display.enter(plans[0], "done")
    states = list(display.states.values())
    expected = 2.0 * sum(state.work for state in states[1:]) / states[0].work
    assert display.left() == in_words(expected)
    assert f"about {display.left()} of training left in all" in shown(display)
    for state in states[1:]:
        state.stage = "failed"
    assert display.left() is None and "left" not in shown(display)


def test_scoring_is_shown_with_how_far_it_is(plans: list[Plan]) -> None:
    display = Display(plans, io.StringIO(), is_silent=True)
    with display.shown():
        display.enter(plans[0], "scoring")
        with named("scoring valid"):
            tell(30, 40)
        assert "scoring valid 75%" in shown(display)
        with named("scoring valid"):
            tell(10, 40)
        with named("scoring test"):
            tell(1, 100)
        assert "scoring test 1%" in shown(display)
    tell(99, 100)  # nobody watches any more
    assert "scoring test 1%" in shown(display)


def test_doubts_are_told_once_before_the_study_begins(data: Path, tmp_path: Path) -> None:
    overrides = ("training.max_updates=100",)
    request = Request(data=data, preset="tiny", out=tmp_path, overrides=overrides)
    stream = io.StringIO()
    with Display(plans_for(request), stream, is_silent=False).shown():
        pass
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("warning: training.max_updates=100: the run ends inside a cycle")


def test_a_study_that_needs_hours_without_a_gpu_says_so(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("zipflm.training.advice.cpu_speed", lambda: 1e8)
    (line,) = Display(plans, io.StringIO(), is_silent=False).forewarnings()
    assert line.startswith("warning: no GPU: this study needs about ")
    assert " hours here; try the presets tiny, demo or small" in line


def test_other_processes_stay_silent(plans: list[Plan]) -> None:
    stream = io.StringIO()
    display = Display(plans, stream, is_silent=True)
    with display.shown():
        display.enter(plans[0], "training")
    assert stream.getvalue() == ""


def test_lines_say_which_of_how_many(plans: list[Plan], tmp_path: Path) -> None:
    stream = io.StringIO()
    display = Display(plans, stream, is_silent=False)
    with display.shown():
        display.enter(plans[0], "done")
    assert stream.getvalue().startswith("[1/8] SM: done, update 200/200")


def test_a_perplexity_is_said_with_its_own_update(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line may come between a report and the validation of the same update."""
    stream = io.StringIO()
    display = Display(plans, stream, is_silent=False)
    state = display.states[plans[0].run.path]
    monkeypatch.setattr(State, "read", lambda self: None)
    state.update, state.perplexity, state.validated = 60, 30.0, 40
    display.enter(plans[0], "training")
    state.validated = 60
    display.enter(plans[0], "training")
    early, exact = stream.getvalue().splitlines()
    assert "update 60/200, valid perplexity 30.00 after 40" in early
    assert "after" not in exact


@pytest.mark.parametrize("width", [36, 60, 80])
def test_a_narrow_terminal_shows_whole_names_and_numbers(plans: list[Plan], width: int) -> None:
    display = Display(plans, io.StringIO(), is_silent=True)
    display._console = Console(file=io.StringIO(), width=width)
    display.enter(plans[0], "training")
    out = io.StringIO()
    Console(file=out, width=width).print(display.table())
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines[1:9]] == [plan.label for plan in plans]
    assert all(part in lines[1] for part in ("200/200", "30.0", "training"))


def test_a_low_terminal_shows_the_current_member(plans: list[Plan]) -> None:
    display = Display(plans, io.StringIO(), is_silent=True)
    display._console = Console(file=io.StringIO(), width=80, height=6)
    for plan in (plans[0], plans[4], plans[7]):
        display.enter(plan, "training")
        out = io.StringIO()
        Console(file=out, width=80).print(display.table())
        lines = out.getvalue().splitlines()
        assert len(lines) <= 5 and any(line.split()[0] == plan.label for line in lines)
        assert "3 of 8 members" in lines[-1]


class NarrowTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", ["10", "24", "60"])
def test_the_result_leaves_columns_out_before_it_cuts_a_number(
    width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    study, narrow, wide = example_study(), NarrowTerminal(), io.StringIO()
    print_table(study, narrow)
    print_table(study, wide)
    assert "\u2026" not in narrow.getvalue() + wide.getvalue()
    assert "more columns are in the report" in narrow.getvalue()
    assert "memory" in wide.getvalue() and "memory" not in narrow.getvalue()
    for row in study.finished:
        assert number(row.perplexity[study.split].mean) in narrow.getvalue()


EVIL = "x\x1b]0;owned\x07[/red] [bold]y"
SHOWN = "x\\x1b]0;owned\\x07[/red] [bold]y"


def renamed(study: Study, label: str) -> Study:
    first, *rest = study.rows
    return replace(study, title=label, rows=(replace(first, label=label), *rest))


def test_names_from_files_reach_the_terminal_spelt_out_and_are_no_markup() -> None:
    out = io.StringIO()
    print_table(renamed(example_study(), EVIL), out)
    assert "\x1b" not in out.getvalue() and "\x07" not in out.getvalue()
    assert out.getvalue().count(SHOWN) == 2  # title and row


def test_progress_shows_such_names_spelt_out_too(plans: list[Plan]) -> None:
    evil = replace(plans[0], label=EVIL)
    stream, drawn = io.StringIO(), io.StringIO()
    display = Display([evil], stream, is_silent=False)
    display.enter(evil, "done")
    Console(file=drawn, width=200).print(display.table())
    for said in (stream.getvalue(), drawn.getvalue()):
        assert SHOWN in said and "\x1b" not in said


def test_a_reason_of_many_pages_is_shortened() -> None:
    study = example_study(broken="SM")
    first, *rest = study.rows
    members = tuple(replace(m, problem="why " * 9_000) for m in first.members)
    out = io.StringIO()
    print_table(replace(study, rows=(replace(first, members=members), *rest)), out)
    assert max(map(len, out.getvalue().splitlines())) <= 2_000
