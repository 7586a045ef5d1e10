"""Several processes that find and hear each other, through gloo on the CPU."""

import pytest
import torch
from training_runs import call, run, run_apart, train_command

from zipflm.runs.folder import RunFolder
from zipflm.training.distributed import Process, add_up, started

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

# Without dropout, which draws differently in each process.
SAME = ["decoder.dropout=0", "output.tail_dropout=0", "training.max_updates=6"]


def test_machines_that_do_not_share_the_run_folder_are_told(word_data, tmp_path):
    """Each of these run folders is fit to be resumed, alone."""
    outs = [tmp_path / "a", tmp_path / "b"]
    for out, updates in zip(outs, (4, 2), strict=True):
        run(word_data, out, *SAME, f"training.max_updates={updates}")
    assert run_apart(word_data, outs, *SAME, "training.max_updates=3") == [2, 2]
    message = "update is 4 in process 0, but 2 in process 1; --out must be a folder that all"
    for out in outs:
        assert message in out.with_name(f"{out.name}.error").read_text()


def test_torchrun_trains_and_the_first_process_alone_speaks(word_data, tmp_path):
    out = tmp_path / "run"
    done = call(train_command(word_data, out, "training.max_updates=2", processes=2))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 device(s) x 64 tokens x 1 accumulated") == 1
    state = RunFolder(out).choose("newest").state()
    assert state.world_size == 2


def test_one_process_needs_no_engine():
    with started("cpu") as process:
        assert process == Process(0, 1, torch.device("cpu"))
        assert add_up(torch.tensor(3), process) == 3
