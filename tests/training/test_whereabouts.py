"""Who is waited for in vain is named, and nobody who may take long is hurried."""

import re
import signal
import time

import pytest
from started_together import together
from training_runs import SMALL

from tests.training import failing_run
from zipflm.runs.folder import RunFolder
from zipflm.training.whereabouts import LONG, Lookout, Notebook, Stage, Whereabouts, shown

LIMIT = 10.0


class Clockwork:
    """Processes on a clock that is set by hand; all of them give signs of life unless told."""

    def __init__(self, count):
        self.notebooks = [Notebook() for _ in range(count)]
        self.silent = set()
        self._lookout, self._now, self._shown = Lookout(LIMIT, 0.0), 0.0, [None] * count

    def pass_(self, seconds):
        """What is found in this time, looking every second."""
        for _ in range(int(seconds)):
            self._now += 1
            for rank, notebook in enumerate(self.notebooks):
                if rank not in self.silent:
                    self._shown[rank] = shown(notebook.here, int(self._now))
            found = self._lookout.see(self._shown, self._now)
            if found is not None:
                return found
        return None


def test_a_process_that_is_behind_is_named_with_its_update():
    clock = Clockwork(3)
    for rank, notebook in enumerate(clock.notebooks):
        notebook.note(Stage.READING if rank == 1 else Stage.UPDATING, 12)
    assert clock.pass_(LIMIT) is None
    reason, ranks = clock.pass_(2)
    assert ranks == [1]
    assert reason == (
        "no progress for 11 s: the others, in update 13, wait for process 1: process 1 is reading "
        "the batches of update 13"
    )


def test_where_all_are_in_the_same_update_all_are_named():
    clock = Clockwork(2)
    for notebook in clock.notebooks:
        notebook.note(Stage.UPDATING, 12)
    reason, ranks = clock.pass_(2 * LIMIT)
    assert ranks == [0, 1] and reason.endswith("processes 0, 1 hang in update 13")


@pytest.mark.parametrize(
    ("stage", "limit", "last"),
    [
        (Stage.UPDATING, LIMIT, "in update 8"),
        # Writing a large file in one go keeps all threads of a process from running.
        (Stage.SAVING, LONG * LIMIT, "saving after update 7"),
    ],
)
def test_a_process_that_shows_no_sign_of_life_is_named(stage, limit, last):
    """One that is stopped, or whose machine is gone; the others need not wait for it to tell."""
    clock = Clockwork(2)
    for notebook in clock.notebooks:
        notebook.note(stage, 7)
    clock.pass_(3)
    clock.silent = {1}
    for _ in range(int(limit)):
        clock.notebooks[0].count()
        assert clock.pass_(1) is None
    reason, ranks = clock.pass_(1)
    assert ranks == [1]
    assert reason == (
        f"no sign of life from process 1 for {limit + 1:.0f} s: process 1 was last seen {last}"
    )


def test_a_process_that_never_showed_itself_is_named():
    clock = Clockwork(2)
    clock.silent = {1}
    assert clock.pass_(2 * LIMIT) == ("no sign of life from process 1 for 11 s", [1])


@pytest.mark.parametrize("stage", [Stage.OTHER, Stage.SAVING, Stage.COMPILING])
def test_what_may_take_long_has_a_longer_limit(stage):
    clock = Clockwork(2)
    for notebook in clock.notebooks:
        notebook.note(stage, 3)
    assert clock.pass_(LONG * LIMIT) is None
    assert clock.pass_(2) is not None


def test_those_who_wait_for_one_at_long_work_wait_as_long():
    """As for a first process that writes the report alone."""
    clock = Clockwork(3)
    for notebook in clock.notebooks[1:]:
        notebook.turn(1)
    assert clock.pass_(LONG * LIMIT) is None


def test_a_pass_over_a_long_text_is_progress_batch_by_batch():
    clock = Clockwork(2)
    for notebook in clock.notebooks:
        notebook.note(Stage.VALIDATING, 3)
    for _ in range(10):
        assert clock.pass_(LIMIT - 1) is None
        clock.notebooks[0].count()
    assert clock.pass_(2 * LIMIT) is not None


def test_a_run_passes_its_stages_in_their_order():
    """So that the least of them is behind."""
    notebook, passed = Notebook(), []
    for update in (0, 1):
        for stage in (Stage.VALIDATING, Stage.SAVING, Stage.READING, Stage.UPDATING):
            notebook.note(stage, update)
            passed.append(notebook.here)
    notebook.turn(1)
    assert [*passed, notebook.here] == sorted([*passed, notebook.here])
    assert str(Whereabouts(0, 4, Stage.COMPILING)) == "compiling in update 5"


# --- Real processes. ---


def arguments(data, out, *overrides, limit=3):
    options = ["--data", data.path, "--out", out, "--device", "cpu", "--stall-seconds", limit]
    settings = [*SMALL, "training.report_every=1", "training.checkpoint_every=0", *overrides]
    return [str(each) for each in ("train", "tiny/ADP-T", *options, "--resume-if-any", *settings)]


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_is_stopped_ends_the_other_which_says_so(word_data, tmp_path, stopped):
    """Its connections stay open, so nothing else would ever tell."""
    command = arguments(word_data, tmp_path / "run", "training.max_updates=100000")
    with together(tmp_path / "said", 2, failing_run.run, "none", "train", "", *command) as running:
        running.wait_for(lambda: "update 40/" in running.stdout())
        running.signal(stopped, signal.SIGSTOP)
        begun = time.monotonic()
        ended = running.wait_for_end_of(1 - stopped)
        assert time.monotonic() - begun < 20
        assert ended.status == 1
        silent = rf"zipflm: no sign of life from process {stopped} for \d s: process {stopped} was "
        assert re.match(rf"{silent}last seen .*update \d+; .*--resume", ended.stderr)


@pytest.mark.slow
@pytest.mark.multi_process
def test_a_process_that_hangs_is_named_with_the_update(word_data, tmp_path):
    """Its threads are alive: only its place on the way tells."""
    command = arguments(word_data, tmp_path / "run", "training.max_updates=100000")
    with together(tmp_path / "said", 2, failing_run.run, "1", "read", "hang", *command) as running:
        ended = [running.wait_for_end_of(rank) for rank in (0, 1)]
    assert [each.status for each in ended] == [1, 1]
    said = "wait for process 1: process 1 is reading the batches of update 3"
    assert said in ended[0].stderr and ended[1].stderr == ""


@pytest.mark.slow
@pytest.mark.multi_process
def test_sigterm_to_one_process_saves_and_stops_all_however_long_saving_takes(word_data, tmp_path):
    """As a queue does before it takes a machine away; torchrun passes on what it gets itself, so
    all of them get another one while they save. That takes longer than a stall may."""
    out = tmp_path / "run"
    command = arguments(word_data, out, limit=2)
    endless = [*command, "training.max_updates=100000"]
    with together(tmp_path / "said", 2, failing_run.run, "0", "save", "slow", *endless) as running:
        running.wait_for(lambda: "update 3/" in running.stdout())
        running.signal(1, signal.SIGTERM)
        time.sleep(0.7)
        for rank in (0, 1):
            running.signal(rank, signal.SIGTERM)
        ended = running.wait()
    assert [each.status for each in ended] == [130, 130], ended
    assert "stopped after update" in ended[0].stdout
    (saved,) = RunFolder(out).checkpoints()
    more = [*command, f"training.max_updates={saved.update + 2}"]
    with together(tmp_path / "again", 2, failing_run.run, "none", "save", "", *more) as running:
        ended = running.wait()
    assert [each.status for each in ended] == [0, 0], ended
    assert f"resuming after update {saved.update}" in ended[0].stdout


@pytest.mark.slow
@pytest.mark.multi_process
def test_no_limit_is_a_limit_that_never_comes(word_data, tmp_path):
    command = arguments(word_data, tmp_path / "run", "training.max_updates=3", limit=0)
    with together(tmp_path / "said", 2, failing_run.run, "1", "read", "slow", *command) as running:
        assert [each.status for each in running.wait()] == [0, 0]
