"""Processes succeed or fail together: as threads that share a store, and as real processes."""

import json
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from started_together import run_together
from training_runs import SMALL

from tests.training import failing_run
from zipflm.training import team as module
from zipflm.training.team import FailedElsewhere, Team, described
from zipflm.training.whereabouts import Stage


class Ended(BaseException):
    """What `os._exit` becomes here."""


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch):
    """Processes are threads that share a store, and are quick to lose patience."""
    store = dist.HashStore()
    monkeypatch.setattr(module, "_connect", lambda attempt: store)
    monkeypatch.setattr(module, "PATIENCE", 0.4)
    monkeypatch.setattr(module, "_LONGER", 0.2)
    monkeypatch.setattr(module, "_PAUSE", 0.02)

    def end(status):
        raise Ended(status)

    monkeypatch.setattr("zipflm.training.team.os._exit", end)


def in_processes(*work, limit=0.0):
    """What each of these functions of a team returns or raises."""
    results = [None] * len(work)

    def one(rank):
        team = Team(rank, len(work), "attempt", limit)
        try:
            results[rank] = work[rank](team)
        except BaseException as error:
            results[rank] = error
        team._is_over.set()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "it waits for ever"
    return results


def test_when_all_are_well_there_is_no_problem():
    assert in_processes(*[lambda team: team.agree("")] * 3) == ["", "", ""]


def test_nobody_who_is_well_is_hurried():
    def slow(team):
        time.sleep(1.5)
        return team.agree("")

    assert in_processes(slow, lambda team: team.agree("")) == ["", ""]


def test_the_same_problem_everywhere_is_one_problem():
    def twice(team):
        return team.agree("diverged"), team.agree("")

    assert in_processes(twice, twice) == [("diverged", ""), ("diverged", "")]


def test_the_problem_of_one_is_known_to_all_where_all_got_as_far():
    def twice(team):
        return team.agree("cannot score" if team._rank == 0 else ""), team.agree("")

    assert in_processes(twice, twice, twice) == [("cannot score", "")] * 3


def test_different_problems_end_all_and_the_first_process_says_so(capsys):
    results = in_processes(lambda team: team.agree("this"), lambda team: team.agree("that"))
    assert all(isinstance(result, Ended) for result in results)
    assert capsys.readouterr().err == "zipflm: process 0: this; process 1: that\n"


def test_nobody_ends_before_all_have_read_why(monkeypatch):
    """torchrun would end the one that has yet to read with SIGTERM, and it would repeat it all."""
    times = {}

    def slow(team, keys, own, wait=Team._wait):
        wait(team, keys, own)
        if team._rank == 1:
            time.sleep(0.2)
            times["read"] = time.monotonic()

    def end(team, alarm):
        times.setdefault("ended", time.monotonic())
        raise Ended(alarm.status)

    monkeypatch.setattr(Team, "_wait", slow)
    monkeypatch.setattr(Team, "_end", end)
    in_processes(lambda team: team.agree("this"), lambda team: team.agree("that"))
    assert times["ended"] > times["read"]


def test_one_who_failed_does_not_wait_for_those_who_wait_for_him(capsys):
    def stuck(team):
        team._is_over.set()  # and its thread is stuck as well
        time.sleep(1.0)

    results = in_processes(stuck, lambda team: team.agree("no\nroom"))
    assert isinstance(results[1], Ended)
    assert "zipflm: process 1: no\\nroom (no answer from process 0)" in capsys.readouterr().err


def test_one_who_is_stuck_is_ended_by_a_thread_that_looks_out(monkeypatch, capsys):
    """The thread ends the whole process; here it only says what it would do."""
    ended = []
    monkeypatch.setattr(Team, "_end", lambda team, alarm: ended.append((team._rank, alarm.reason)))

    def stuck(team):
        time.sleep(1.0)

    def failing(team):
        team._store.set("0/failed", '{"reason": "process 1: no room"}')
        team._round += 1  # as in `_share`

    in_processes(stuck, failing)
    assert set(ended) == {(0, "process 1: no room")}


@pytest.mark.parametrize(
    ("moment", "status", "said"),
    [
        ("failed", 1, "zipflm: process 0: connection closed by peer\n"),
        ("telling the others", 1, "zipflm: process 0: connection closed by peer\n"),
        ("well", 143, ""),
    ],
)
def test_a_process_says_what_went_wrong_before_sigterm_ends_it(tmp_path, moment, status, said):
    """Whatever moment torchrun's SIGTERM comes at; one that is well ends soon, too."""
    (ended,) = run_together(tmp_path, 1, failing_run.terminated, moment)
    assert (ended.status, ended.stderr) == (status, said)


def test_the_others_know_at_once_that_something_may_take_long():
    """It may keep the thread that tells them from running."""

    def work(team):
        seen = []
        for stage in (Stage.UPDATING, Stage.SAVING, Stage.READING):
            team.note(stage, 4)
            seen.append(json.loads(team._store.get(f"place/{team._rank}"))[3])
        return seen

    assert (
        in_processes(work, work, limit=60.0) == [[Stage.UPDATING, Stage.SAVING, Stage.READING]] * 2
    )


def leave(team, error=None):
    with team.leaving_together():
        if error is not None:
            raise error
    return "left"


def test_all_leave_together():
    assert in_processes(leave, leave) == ["left", "left"]


def test_an_error_of_one_at_the_end_is_an_error_of_all():
    results = in_processes(lambda team: leave(team, OSError("disk full")), leave)
    assert isinstance(results[0], OSError) and isinstance(results[1], FailedElsewhere)
    assert str(results[1]) == "process 0: disk full"


def test_an_error_that_all_have_is_raised_as_it_is():
    results = in_processes(*[lambda team: leave(team, ValueError("bad input"))] * 2)
    assert [type(result) for result in results] == [ValueError, ValueError]


def test_an_error_of_the_program_elsewhere_is_no_bad_input():
    results = in_processes(lambda team: leave(team, KeyError("bug")), leave)
    assert isinstance(results[0], KeyError) and results[1].args == (1,)


def test_bad_input_of_several_kinds_is_bad_input(capsys):
    results = in_processes(
        lambda team: leave(team, ValueError("this")), lambda team: leave(team, OSError("that"))
    )
    assert [result.args for result in results] == [(2,), (2,)]
    assert capsys.readouterr().err == "zipflm: process 0: this; process 1: that\n"


def test_one_who_leaves_takes_those_along_who_are_still_at_work(capsys):
    results = in_processes(lambda team: leave(team, KeyError("bug")), lambda team: team.agree(""))
    assert isinstance(results[0], KeyError) and isinstance(results[1], Ended)


def test_one_who_does_not_come_is_named_by_one_who_waits(monkeypatch):
    """The first process is the one that is stuck, so the second speaks."""
    alarms = []

    def end(team, alarm):
        team._is_over.set()
        alarms.append((team._rank, alarm))

    monkeypatch.setattr(Team, "_end", end)

    def work(team):
        team.note(Stage.READING, 4)
        if team._rank > 0:
            team.note(Stage.UPDATING, 4)
        team._is_over.wait(5)

    in_processes(work, work, limit=0.5)
    assert {rank for rank, _ in alarms} == {0, 1}
    (alarm,) = {alarm for _, alarm in alarms}
    assert alarm.speaker == 1 and alarm.status == 1
    assert "wait for process 0: process 0 is reading the batches of update 5" in alarm.reason


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n lines"), "two lines"),
        (
            OSError(28, "No space"),
            "the disk is full; free some space, or name a place on another disk (No space)",
        ),
        (RuntimeError("shapes"), "RuntimeError: shapes"),
        (KeyError(), "KeyError"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_error_is_described_on_one_line(error, text):
    assert described(error) == text


# --- Real processes, watched over as torchrun does it. ---

BOUND = 60.0
"""Seconds in which all processes are gone, start included."""
SHORT = [*SMALL, "training.max_updates=4", "training.report_every=1", "training.checkpoint_every=2"]


def started(place, rank, where, fault, *arguments):
    """What became of two processes, one of which may fail; and after how many seconds."""
    begun = time.monotonic()
    ended = run_together(place, 2, failing_run.run, rank, where, fault, *map(str, arguments))
    return ended, time.monotonic() - begun


def compare_arguments(data, out):
    options = ["--data", data.path, "--preset", "tiny", "--out", out, "--device", "cpu"]
    return ["compare", *options, "--factorizations", "ADP,ADP-T", *SHORT]


def complaints(ended):
    lines = [line for each in ended for line in each.stderr.splitlines()]
    return [line for line in lines if line.startswith("zipflm: ")]


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("error", "zipflm: process 1: a fault in process 1"),
        ("kill", "zipflm: process 0: RuntimeError: "),
    ],
)
def test_a_study_ends_if_a_process_fails_and_the_same_command_goes_on(
    word_data, tmp_path, fault, said
):
    arguments = compare_arguments(word_data, tmp_path / "study")
    ended, seconds = started(tmp_path / "first", "1", "train", fault, *arguments)
    assert all(each.status for each in ended) and seconds < BOUND
    assert any(line.startswith(said) for line in complaints(ended)), ended
    assert "[2/2]" not in ended[0].stdout  # nothing is carried over to the next member
    again, _ = started(tmp_path / "again", "none", "train", fault, *arguments)
    assert [each.status for each in again] == [0, 0], again
    rows = json.loads((tmp_path / "study" / "table.json").read_text())["rows"]
    assert [row["problem"] for row in rows] == ["", ""]


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_failure_in_scoring_is_the_members_and_the_study_goes_on(word_data, tmp_path):
    arguments = compare_arguments(word_data, tmp_path / "study")
    ended, seconds = started(tmp_path / "first", "0", "score", "error", *arguments)
    assert [each.status for each in ended] == [1, 1] and seconds < BOUND
    problem = "ADP: process 0: a fault in process 0"
    assert complaints(ended) == [f"zipflm: without a result: {problem}"]
    said = ended[0].stdout
    assert "[1/2] ADP: failed" in said and "[2/2] ADP-T: done" in said
    again, _ = started(tmp_path / "again", "none", "score", "error", *arguments)
    assert [each.status for each in again] == [0, 0], again


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_run_ends_if_a_process_fails_and_the_same_command_goes_on(word_data, tmp_path):
    options = ["--data", word_data.path, "--out", tmp_path / "run", "--device", "cpu"]
    arguments = ["train", "tiny/ADP-T", *options, "--resume-if-any", *SHORT]
    ended, seconds = started(tmp_path / "first", "1", "train", "bug", *arguments)
    assert all(each.status for each in ended) and seconds < BOUND
    assert "zipflm: process 1: KeyError: 'a fault in process 1'" in complaints(ended)
    assert "in faulty_update" in ended[1].stderr  # a bug comes with its traceback
    again, _ = started(tmp_path / "again", "none", "train", "bug", *arguments)
    assert [each.status for each in again] == [0, 0], again
    assert "resuming after update 2" in again[0].stdout


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_run_that_diverges_is_the_same_problem_in_all_processes(word_data, tmp_path):
    """Weights of 1e18 squared have no finite loss; the study goes on with the next member."""
    arguments = compare_arguments(word_data, tmp_path / "study")
    hot = [f"training.{n}=1e18" for n in ("schedule.max_lr", "optimizer.weight_decay")]
    hot += ["training.schedule.warmup_from=1e18", "training.max_bad_updates=1"]
    ended, seconds = started(tmp_path / "first", "none", "train", "error", *arguments, *hot)
    assert [each.status for each in ended] == [1, 1] and seconds < BOUND
    said = ended[0].stdout
    assert "[1/2] ADP: failed" in said and "[2/2] ADP-T: failed" in said
    (said,) = complaints(ended)
    assert "ADP: training.max_bad_updates=1" in said and "bad-batch-*.safetensors" in said


def test_the_others_are_gone_before_torchrun_loses_patience():
    """30 seconds after SIGTERM it kills, and what a process had to say is lost."""
    source = Path(module.__file__).read_text()
    patience, longer = (
        float(source.split(f"\n{name} = ")[1].split("\n")[0]) for name in ("PATIENCE", "_LONGER")
    )
    assert patience + longer < 30
