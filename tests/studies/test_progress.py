"""Terminal output of a study."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from studies.example_study import study as example_study
from studies.study_runs import FakeTrainer, plans_for

from zipflm.studies.progress import Display, print_table
from zipflm.studies.tables import number
from zipflm.training.throughput import format_duration


@pytest.fixture(scope="module")
def plans(data, tmp_path_factory):
    """Eight members; the first one is trained."""
    plans = plans_for(data, tmp_path_factory.mktemp("study"))
    FakeTrainer()(plans[0].config, plans[0].data, plans[0].run.path)
    return plans


def output_of(plans, *stages, is_silent=False):
    stream = io.StringIO()
    display = Display(plans, stream, is_silent=is_silent)
    for stage in stages:
        display.set_stage(plans[0], stage)
    return stream.getvalue().splitlines()


def test_progress_lines(plans):
    training, done = output_of(plans, "training", "done")
    assert training.startswith(
        "[1/8] SM: training, update 200/200, loss 4.000, validation perplexity 3"
    )
    assert done == "[1/8] SM: done, update 200/200, validation perplexity 30.00, 2.0 s"
    assert output_of(plans, "done", is_silent=True) == []  # not the first process


def test_time_left_follows_from_finished_members(plans):
    assert Display(plans[1:], io.StringIO(), is_silent=True).time_left() is None
    display = Display(plans, io.StringIO(), is_silent=True)
    display.set_stage(plans[0], "done")
    members = list(display.members.values())
    expected = 2.0 * sum(member.work for member in members[1:]) / members[0].work
    assert display.time_left() == format_duration(expected)
    for member in members[1:]:
        member.stage = "failed"
    assert display.time_left() is None


def test_terminal_shows_the_current_line(plans):
    stream = io.StringIO()
    display = Display(plans, stream, is_silent=False)
    display.console = Console(file=stream, force_terminal=True, width=100)
    with display.show():
        display.set_stage(plans[0], "scoring")
        display.set_stage(plans[0], "done")
    assert "[1/8] SM: done, update 200/200" in stream.getvalue()


def test_warns_about_long_training_without_a_gpu(data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("zipflm.training.throughput.cpu_speed", lambda: 1e8)
    overrides = ("training.max_updates=100",)
    stream = io.StringIO()
    with Display(plans_for(data, tmp_path, overrides=overrides), stream, is_silent=False).show():
        pass
    *schedules, slow = stream.getvalue().splitlines()
    assert all("learning rate is at" in line for line in schedules)
    assert slow.startswith("warning: no GPU: this study needs about ")


def test_printed_table_is_not_cut_and_escapes_names(plans, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "10")
    evil, shown = "x\x1b]0;owned\x07[/red] [bold]y", "x\\x1b]0;owned\\x07[/red] [bold]y"
    study = example_study()
    first, *rest = study.rows
    print_table(replace(study, title=evil, rows=(replace(first, label=evil), *rest)))
    out = capsys.readouterr().out
    assert out.count(shown) == 2  # title and row
    for row in study.finished:
        assert number(row.perplexity[study.split].mean) in out
    (line,) = output_of([replace(plans[0], label=evil)], "done")
    assert shown in line and "\x1b" not in line + out
