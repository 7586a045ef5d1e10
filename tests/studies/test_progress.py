"""All members are shown while a study runs, on a terminal and elsewhere."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from studies.example_study import study as example_study
from studies.study_runs import PretendTrainer, plans_for

from zipflm.evaluation.scoring import named, tell
from zipflm.studies.plan import Plan, Request
from zipflm.studies.progress import Display, print_table
from zipflm.studies.tables import number
from zipflm.training.throughput import in_words


@pytest.fixture(scope="module")
def plans(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Plan]:
    """Eight members, the first of them trained."""
    request = Request(data=data, preset="tiny", out=tmp_path_factory.mktemp("study"))
    plans = plans_for(request)
    PretendTrainer()(plans[0].config, plans[0].data, plans[0].run.path)
    return plans


def silent(plans: list[Plan], width: int = 140, height: int = 50) -> Display:
    display = Display(plans, io.StringIO(), is_silent=True)
    display.console = Console(file=io.StringIO(), width=width, height=height)
    return display


def drawn(display: Display) -> str:
    out = io.StringIO()
    Console(file=out, width=display.console.width).print(display.table())
    return out.getvalue()


def test_the_table_shows_every_member_and_how_far_it_is(plans: list[Plan]) -> None:
    display = silent(plans)
    display.enter(plans[0], "training")
    lines = drawn(display).splitlines()
    assert [line.split()[0] for line in lines[1:9]] == [plan.label for plan in plans]
    assert all(part in lines[1] for part in ("200/200", "4.000", "30.0", "2.0 s", "training"))
    assert "waiting" in lines[2] and "0/200" in lines[2]


def test_the_time_left_is_that_of_the_members_before_by_their_work(plans: list[Plan]) -> None:
    """The first member took two seconds for all its updates; the others need as long for as much
    work, and those that will not go on need nothing."""
    display = silent(plans)
    assert display.left() is None, "nothing is known yet"
    display.enter(plans[0], "done")
    states = list(display.states.values())
    expected = 2.0 * sum(state.work for state in states[1:]) / states[0].work
    assert f"about {in_words(expected)} of training left in all" in drawn(display)
    for state in states[1:]:
        state.stage = "failed"
    assert "left" not in drawn(display)


def test_scoring_is_shown_with_how_far_it_is(plans: list[Plan]) -> None:
    display = silent(plans)
    with display.shown():
        display.enter(plans[0], "scoring")
        with named("scoring valid"):
            tell(30, 40)
            assert "scoring valid 75%" in drawn(display)
            tell(10, 40)
        with named("scoring test"):
            tell(1, 100)
    tell(99, 100)  # nobody watches any more
    assert "scoring test 1%" in drawn(display)


def test_hours_without_a_gpu_are_told_before_the_study_begins(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("zipflm.training.throughput.cpu_speed", lambda: 1e8)
    overrides = ("training.max_updates=100",)
    request = Request(data=data, preset="tiny", out=tmp_path, overrides=overrides)
    stream = io.StringIO()
    with Display(plans_for(request), stream, is_silent=False).shown():
        pass
    (slow,) = stream.getvalue().splitlines()
    assert slow.startswith("warning: no GPU: this study needs about ")


def test_lines_say_which_of_how_many_and_other_processes_stay_silent(plans: list[Plan]) -> None:
    for is_silent, start in ((False, "[1/8] SM: done, update 200/200"), (True, "")):
        stream = io.StringIO()
        display = Display(plans, stream, is_silent=is_silent)
        display.enter(plans[0], "done")
        assert stream.getvalue()[: len(start) or None] == start


@pytest.mark.parametrize("width", [36, 80])
def test_a_narrow_terminal_shows_whole_names_and_numbers(plans: list[Plan], width: int) -> None:
    display = silent(plans, width)
    display.enter(plans[0], "training")
    lines = drawn(display).splitlines()
    assert [line.split()[0] for line in lines[1:9]] == [plan.label for plan in plans]
    assert all(part in lines[1] for part in ("200/200", "30.0", "training"))


def test_a_low_terminal_shows_the_current_member(plans: list[Plan]) -> None:
    display = silent(plans, width=80, height=6)
    for plan in (plans[0], plans[4], plans[7]):
        display.enter(plan, "training")
        lines = drawn(display).splitlines()
        assert len(lines) <= 5 and any(line.split()[0] == plan.label for line in lines)
        assert "3 of 8 members" in lines[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", ["10", "60"])
def test_the_result_leaves_columns_out_before_it_cuts_a_number(
    width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    study, narrow, wide = example_study(), Terminal(), io.StringIO()
    print_table(study, narrow)
    print_table(study, wide)
    assert "\u2026" not in narrow.getvalue() + wide.getvalue()
    assert "more columns are in the report" in narrow.getvalue()
    assert "memory" in wide.getvalue() and "memory" not in narrow.getvalue()
    for row in study.finished:
        assert number(row.perplexity[study.split].mean) in narrow.getvalue()


def test_names_from_files_reach_the_terminal_spelt_out_and_are_no_markup(plans: list[Plan]) -> None:
    evil, shown = "x\x1b]0;owned\x07[/red] [bold]y", "x\\x1b]0;owned\\x07[/red] [bold]y"
    study = example_study()
    first, *rest = study.rows
    out = io.StringIO()
    print_table(replace(study, title=evil, rows=(replace(first, label=evil), *rest)), out)
    assert out.getvalue().count(shown) == 2  # title and row
    plan, stream = replace(plans[0], label=evil), io.StringIO()
    display = Display([plan], stream, is_silent=False)
    display.enter(plan, "done")
    for said in (stream.getvalue(), drawn(display), out.getvalue()):
        assert shown in said and "\x1b" not in said
