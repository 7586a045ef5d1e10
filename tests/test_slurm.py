"""runs/slurm-train.sh with fake Slurm commands: two "machines" on this one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from started_together import run_together
from training_runs import SMALL, assert_same, environment, wait_for, weights

from zipflm.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]
UPDATES = 200  # long enough for all interruptions
SETTINGS = [*SMALL, f"training.max_updates={UPDATES}", "training.checkpoint_every=10"]

SRUN = """#!/usr/bin/env bash
# Two tasks, as on two machines; their process ids are written to a file.
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do
    SLURM_NODEID=$node "$@" &
    echo $! >> "$FAKE_SLURM/tasks"
done
status=0
for task in $(cat "$FAKE_SLURM/tasks"); do wait "$task" || status=$?; done
exit $status
"""
SCONTROL = """#!/usr/bin/env bash
case $1 in
    show) printf '127.0.0.1\\n127.0.0.2\\n' ;;
    requeue) echo "$2" >> "$FAKE_SLURM/requeued" ;;
esac
"""
SCANCEL = """#!/usr/bin/env bash
[ "$1 $2" = "--signal=TERM $SLURM_JOB_ID" ] && kill -TERM $(cat "$FAKE_SLURM/tasks")
"""


@pytest.fixture
def slurm(tmp_path):
    """An environment with these commands."""
    folder = tmp_path / "fake"
    folder.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "scancel": SCANCEL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environment() | {
        "PATH": path,
        "FAKE_SLURM": str(folder),
        "PROCESSES_PER_NODE": "1",
        "SLURM_JOB_ID": str(os.getpid()),  # determines the port
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
    }


def train(data, out, updates):
    """The same run without interruptions, for fewer updates."""
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
    """After kill -9 of a process torchrun restarts all of them from the newest checkpoint. After
    the signal of Slurm they save, and the job is requeued. In the end the weights are those of an
    uninterrupted run, bit for bit."""
    out, log = tmp_path / "run", tmp_path / "log"
    script = ["bash", ROOT / "runs" / "slurm-train.sh", "tiny/ADP-T", word_data.path, out]
    with log.open("w") as file:
        job = subprocess.Popen(
            [*script, "--device", "cpu", *SETTINGS], env=slurm, stdout=file, stderr=file
        )
        try:
            wait_for(lambda: RunFolder(out).checkpoints(), job)
            tasks = [int(pid) for pid in (tmp_path / "fake" / "tasks").read_text().split()]
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
    output = log.read_text()
    assert (tmp_path / "fake" / "requeued").read_text() == f"{slurm['SLURM_JOB_ID']}\n", output
    assert output.count(" tokens per update = 2 device(s)") == 2, "more than one restart"
    assert "stopped after update" in output and "requeueing the job" in output
    reached = RunFolder(out).checkpoints()[0].update
    assert reached < UPDATES

    end = reached + 10
    ended = run_together(tmp_path / "again", 2, train, str(word_data.path), str(out), end)
    assert [each.status for each in ended] == [0, 0], ended
    whole = tmp_path / "whole"
    ended = run_together(tmp_path / "at once", 2, train, str(word_data.path), str(whole), end)
    assert [each.status for each in ended] == [0, 0], ended
    assert_same(weights(out, end), weights(whole, end))
