"""Runs that are killed, stopped or cannot write keep their checkpoints."""

import os
import pty
import random
import resource
import signal
import subprocess
import time

import pytest
from training_runs import (
    assert_same,
    call,
    child,
    disturb,
    environment,
    reports,
    run,
    train_command,
    wait_for,
    weights,
)

from zipflm.runs.folder import RunFolder

LONG = ["training.max_updates=100000", "training.checkpoint_every=20", "training.report_every=10"]


def start(arguments, log):
    return subprocess.Popen(arguments, env=environment(), stdout=log, stderr=subprocess.STDOUT)


def names(out):
    return {checkpoint.name for checkpoint in RunFolder(out).checkpoints()}


@pytest.mark.slow
def test_a_run_killed_ten_times_ends_with_the_same_weights(word_data, tmp_path):
    """Killed before its first checkpoint, during updates and during saving."""
    length = ["training.max_updates=150", "training.checkpoint_every=3", "training.report_every=50"]
    run(word_data, tmp_path / "whole", *length)
    out, draw, reached = tmp_path / "killed", random.Random(7), set()
    for kill in range(10):
        process = child(word_data.path, out, length)
        process.start()
        # Two early on, the others shortly after a new checkpoint: on a busy machine a fixed delay
        # would end before the first update.
        while kill > 1 and process.is_alive() and names(out) <= reached:
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.3))
        process.kill()
        process.join()
        for checkpoint in RunFolder(out).checkpoints():
            checkpoint.verify()
            reached.add(checkpoint.name)
    assert reached, "no checkpoint was reached"
    run(word_data, out, *length, resume=True)
    assert_same(weights(out), weights(tmp_path / "whole"))
    logged = [report.update for report in reports(out)]
    assert logged == sorted(set(logged)) and logged[-1] == 150
    assert not list(out.rglob(".*")), "temporary files are left"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_saves_and_explains_how_to_resume(word_data, tmp_path, number):
    out = tmp_path / "run"
    with (tmp_path / "log").open("w") as log:
        process = start(train_command(word_data, out, *LONG), log)
        wait_for(lambda: reports(out), process)
        process.send_signal(number)
        assert process.wait(30) == 130
    output = (tmp_path / "log").read_text()
    assert "--resume" in output.splitlines()[-1]
    assert "Traceback" not in output
    saved = RunFolder(out).choose("newest").state().update
    length = ["training.max_updates=" + str(saved + 2)]
    assert run(word_data, out, *length, resume=True)


@pytest.mark.slow
def test_a_closed_terminal_saves_the_run(word_data, tmp_path):
    out = tmp_path / "run"
    arguments = list(map(str, train_command(word_data, out, *LONG, "training.report_every=1")))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(arguments[0], arguments, environment())
    shown = b""
    while b"update 5/" not in shown:
        shown = shown[-100:] + os.read(terminal, 1 << 16)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert RunFolder(out).choose("newest").state().update >= 5


@pytest.mark.slow
def test_one_signal_ends_a_run_with_nothing_new_to_save(word_data, tmp_path):
    """During an update that takes minutes."""
    out, log = tmp_path / "run", tmp_path / "log"
    run(word_data, out, "training.max_updates=4")
    endless = ["training.max_updates=100", "training.tokens_per_update=128000000"]
    with log.open("w") as file:
        process = start([*train_command(word_data, out, *endless), "--resume"], file)
        try:
            wait_for(lambda: "resuming after update 4" in log.read_text(), process)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    (checkpoint,) = RunFolder(out).checkpoints()
    checkpoint.verify()
    assert checkpoint.update == 4


def test_stops_after_the_current_update(word_data, tmp_path, monkeypatch):
    disturb(monkeypatch, interrupt=3)
    assert not run(word_data, tmp_path / "run", "training.max_updates=50")
    assert names(tmp_path / "run") == {"update-00000003"}


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_good_checkpoint(word_data, tmp_path):
    """A limit on the size of files simulates the full disk."""
    out = tmp_path / "run"
    run(word_data, out, "training.max_updates=4")
    good = weights(out)
    largest = max(path.stat().st_size for path in out.rglob("*.safetensors"))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, largest // 2))

    length = ["training.max_updates=8", "training.checkpoint_every=2"]
    done = call([*train_command(word_data, out, *length), "--resume"], preexec_fn=limit)
    assert done.returncode == 2
    assert "could not save update 6" in done.stdout and "training continues" in done.stdout
    assert "could not save update 8" in done.stderr
    assert str(out / "checkpoints" / "update-00000004") in done.stderr
    assert "Traceback" not in done.stderr
    assert [checkpoint.update for checkpoint in RunFolder(out).checkpoints()] == [4]
    assert not list((out / "checkpoints").glob(".*"))
    assert_same(weights(out), good)
    run(word_data, out, *length, resume=True)
    run(word_data, tmp_path / "whole", *length)
    assert_same(weights(out), weights(tmp_path / "whole"))
