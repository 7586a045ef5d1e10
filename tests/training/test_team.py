"""Processes succeed or fail together: in threads that share a store, and under torchrun."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from training_runs import SMALL, call

from zipflm.training import team as module
from zipflm.training.team import FailedElsewhere, Team, described


class Ended(BaseException):
    """What `os._exit` becomes here."""


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch):
    """Processes are threads that share a store, and are quick to lose patience."""
    store = dist.HashStore()
    monkeypatch.setattr(module, "_connect", lambda: store)
    monkeypatch.setattr(module, "PATIENCE", 0.4)
    monkeypatch.setattr(module, "_LONGER", 0.2)
    monkeypatch.setattr(module, "_PAUSE", 0.02)

    def end(status):
        raise Ended(status)

    monkeypatch.setattr("zipflm.training.team.os._exit", end)


def in_processes(*work):
    """What each of these functions of a team returns or raises."""
    results = [None] * len(work)

    def one(rank):
        team = Team(rank, len(work))
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
    monkeypatch.setattr(Team, "_end", lambda team, reason, **_: ended.append((team._rank, reason)))

    def stuck(team):
        time.sleep(1.0)

    def failing(team):
        team._store.set("0/failed", "process 1: no room")
        team._round += 1  # as in `_share`

    in_processes(stuck, failing)
    assert set(ended) == {(0, "process 1: no room")}


TERMINATED = """
import os, signal, sys, time
import torch.distributed as dist
from zipflm.training import team as module

module._connect, module._GRACE = dist.HashStore, 1.0
moment = sys.argv[1]

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

team = module.Team(0, 2)
with team.leaving_together():
    if moment == "well":
        terminate()
        time.sleep(60)
    try:
        raise RuntimeError("connection closed by peer")
    except RuntimeError as error:
        problem = str(error)
    if moment == "failed":
        terminate()
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        signal.signal(signal.SIGALRM, lambda *_: terminate())
    team.agree(problem)
"""


@pytest.mark.parametrize(
    ("moment", "status", "said"),
    [
        ("failed", 1, "zipflm: process 0: connection closed by peer\n"),
        ("telling the others", 1, "zipflm: process 0: connection closed by peer\n"),
        ("well", 143, ""),
    ],
)
def test_a_process_says_what_went_wrong_before_sigterm_ends_it(moment, status, said):
    """Whatever moment torchrun's SIGTERM comes at; one that is well ends soon, too."""
    done = call([sys.executable, "-c", TERMINATED, moment])
    assert (done.returncode, done.stderr) == (status, said)


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


def test_one_who_leaves_takes_those_along_who_are_still_at_work(capsys):
    results = in_processes(lambda team: leave(team, KeyError("bug")), lambda team: team.agree(""))
    assert isinstance(results[0], KeyError) and isinstance(results[1], Ended)


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


# --- Real processes. ---

SCRIPT = Path(__file__).with_name("failing_run.py")
BOUND = 60.0
"""Seconds in which all processes are gone, start included."""
SHORT = [*SMALL, "training.max_updates=6", "training.report_every=1", "training.checkpoint_every=2"]


def torchrun(rank, place, fault, *arguments):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    begun = time.monotonic()
    done = call([*start, str(SCRIPT), rank, place, fault, *map(str, arguments)])
    return done, time.monotonic() - begun


def compare_arguments(data, out):
    options = ["--data", data.path, "--preset", "tiny", "--out", out, "--device", "cpu"]
    return ["compare", *options, "--factorizations", "ADP,ADP-T", *SHORT]


def complaints(done):
    return [line for line in done.stderr.splitlines() if line.startswith("zipflm: ")]


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize(
    ("rank", "fault", "said"),
    [
        ("1", "error", "zipflm: process 1: a fault in process 1"),
        ("1", "kill", "zipflm: process 0: RuntimeError: "),
    ],
)
def test_a_study_ends_if_a_process_fails_and_the_same_command_goes_on(
    word_data, tmp_path, rank, fault, said
):
    arguments = compare_arguments(word_data, tmp_path / "study")
    done, seconds = torchrun(rank, "train", fault, *arguments)
    assert done.returncode != 0 and seconds < BOUND
    assert any(line.startswith(said) for line in complaints(done)), done.stderr
    assert "[2/2]" not in done.stdout  # nothing is carried over to the next member
    again, _ = torchrun("none", "train", fault, *arguments)
    assert again.returncode == 0, again.stderr
    rows = json.loads((tmp_path / "study" / "table.json").read_text())["rows"]
    assert [row["problem"] for row in rows] == ["", ""]


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_failure_in_scoring_is_the_members_and_the_study_goes_on(word_data, tmp_path):
    arguments = compare_arguments(word_data, tmp_path / "study")
    done, seconds = torchrun("0", "score", "error", *arguments)
    assert done.returncode != 0 and seconds < BOUND
    assert complaints(done) == ["zipflm: without a result: ADP: a fault in process 0"]
    assert "[1/2] ADP: failed" in done.stdout and "[2/2] ADP-T: done" in done.stdout
    again, _ = torchrun("none", "score", "error", *arguments)
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_run_ends_if_a_process_fails_and_the_same_command_goes_on(word_data, tmp_path):
    options = ["--data", word_data.path, "--out", tmp_path / "run", "--device", "cpu"]
    arguments = ["train", "tiny/ADP-T", *options, "--resume-if-any", *SHORT]
    done, seconds = torchrun("1", "train", "bug", *arguments)
    assert done.returncode != 0 and seconds < BOUND
    assert "zipflm: process 1: KeyError: 'a fault in process 1'" in complaints(done)
    assert "in faulty_update" in done.stderr  # a bug comes with its traceback
    again, _ = torchrun("none", "train", "bug", *arguments)
    assert again.returncode == 0, again.stderr
    assert "resuming after update 2" in again.stdout


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_run_that_diverges_is_the_same_problem_in_all_processes(word_data, tmp_path):
    """Weights of 1e18 squared have no finite loss; the study goes on with the next member."""
    arguments = compare_arguments(word_data, tmp_path / "study")
    hot = [f"training.{n}=1e18" for n in ("schedule.max_lr", "optimizer.weight_decay")]
    hot += ["training.schedule.warmup_from=1e18", "training.max_bad_updates=1"]
    done, seconds = torchrun("none", "train", "error", *arguments, *hot)
    assert done.returncode != 0 and seconds < BOUND
    assert "[1/2] ADP: failed" in done.stdout and "[2/2] ADP-T: failed" in done.stdout
    (said,) = complaints(done)
    assert "ADP: training.max_bad_updates=1" in said and "bad-batch-*.safetensors" in said


def test_the_others_are_gone_before_torchrun_loses_patience():
    """30 seconds after SIGTERM it kills, and what a process had to say is lost."""
    source = Path(module.__file__).read_text()
    patience, longer = (
        float(source.split(f"\n{name} = ")[1].split("\n")[0]) for name in ("PATIENCE", "_LONGER")
    )
    assert patience + longer < 30
