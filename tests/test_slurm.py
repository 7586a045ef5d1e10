"""runs/slurm-train.sh with commands that pretend to be Slurm's: two "machines" on this one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from started_together import run_together
from training_runs import SMALL, assert_same, environment, weights

from zipflm.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]
UPDATES = 200
"""So many that none of what happens to the run comes after its end."""
SETTINGS = [*SMALL, f"training.max_updates={UPDATES}", "training.checkpoint_every=10"]

SRUN = """#!/usr/bin/env bash
# Two tasks, as on two machines; their process numbers are left in a file.
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do
    SLURM_NODEID=$node "$@" &
    echo $! >> "$PRETENDED/tasks"
done
status=0
for task in $(cat "$PRETENDED/tasks"); do wait "$task" || status=$?; done
exit $status
"""
SCONTROL = """#!/usr/bin/env bash
case $1 in
    show) printf '127.0.0.1\\n127.0.0.2\\n' ;;
    requeue) echo "$2" >> "$PRETENDED/requeued" ;;
esac
"""
SCANCEL = """#!/usr/bin/env bash
[ "$1 $2" = "--signal=TERM $SLURM_JOB_ID" ] && kill -TERM $(cat "$PRETENDED/tasks")
"""


@pytest.fixture
def slurm(tmp_path):
    """An environment with such commands."""
    place = tmp_path / "pretended"
    place.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "scancel": SCANCEL}.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    path = f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environment() | {
        "PATH": path,
        "PRETENDED": str(place),
        "PROCESSES_PER_NODE": "1",
        "SLURM_JOB_ID": str(os.getpid()),  # of which the script makes the port
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
    }


def wait_for(condition, process, seconds=100):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "it ended or hangs"
        time.sleep(0.05)


def train(data, out, updates):
    """The same run, for fewer updates, in processes that nobody interrupts."""
    import zipflm.cli

    options = ["--data", data, "--out", out, "--device", "cpu", "--resume-if-any"]
    length = f"training.max_updates={updates}"
    sys.argv = ["zipflm", "train", "tiny/ADP-T", *options, *SETTINGS, length]
    zipflm.cli.main()


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.skipif(
    not (Path(sys.executable).parent / "torchrun").exists(), reason="torchrun is not installed"
)
def test_two_machines_survive_a_killed_process_and_the_time_limit(word_data, tmp_path, slurm):
    """kill -9 of a process: torchrun starts all again, on both machines, from the newest
    checkpoint. Slurm's signal: they save, and the job goes back into the queue. After some more
    updates the weights are those of a run that nobody interrupted, bit for bit."""
    out, log = tmp_path / "run", tmp_path / "log"
    script = ["bash", ROOT / "runs" / "slurm-train.sh", "tiny/ADP-T", word_data.path, out]
    with log.open("w") as file:
        job = subprocess.Popen(
            [*script, "--device", "cpu", *SETTINGS], env=slurm, stdout=file, stderr=file
        )
        try:
            wait_for(lambda: RunFolder(out).checkpoints(), job)
            tasks = [int(pid) for pid in (tmp_path / "pretended" / "tasks").read_text().split()]
            (worker,) = Path(f"/proc/{tasks[1]}/task/{tasks[1]}/children").read_text().split()
            os.kill(int(worker), signal.SIGKILL)
            wait_for(lambda: "resuming after update" in log.read_text(), job)
            reached = RunFolder(out).checkpoints()[0].update
            wait_for(lambda: RunFolder(out).checkpoints()[0].update > reached, job)
            job.send_signal(signal.SIGUSR1)
            assert job.wait(60) == 0
        finally:
            subprocess.run(["scancel", "--signal=TERM", slurm["SLURM_JOB_ID"]], env=slurm)
            job.kill()
    said = log.read_text()
    assert (tmp_path / "pretended" / "requeued").read_text() == f"{slurm['SLURM_JOB_ID']}\n", said
    assert said.count(" tokens per update = 2 device(s)") == 2, "it took more than one restart"
    assert "stopped after update" in said and "back into the queue" in said
    reached = RunFolder(out).checkpoints()[0].update
    assert reached < UPDATES

    end = reached + 10
    ended = run_together(tmp_path / "again", 2, train, str(word_data.path), str(out), end)
    assert [each.status for each in ended] == [0, 0], ended
    whole = tmp_path / "whole"
    ended = run_together(tmp_path / "at once", 2, train, str(word_data.path), str(whole), end)
    assert [each.status for each in ended] == [0, 0], ended
    assert_same(weights(out, end), weights(whole, end))
