"""Two processes do what one does, through gloo on the CPU."""

import pytest
import torch
from training_runs import (
    assert_close,
    call,
    run,
    run_apart,
    run_together,
    train_command,
    validations,
    weights,
)

from zipflm.runs.folder import RunFolder
from zipflm.training.distributed import Process, add_up, started

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

# Sums in another order: float32 rounding, amplified by some updates.
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}

# Without dropout, which draws differently in each process.
SAME = ["decoder.dropout=0", "output.tail_dropout=0", "training.max_updates=6"]
# AdamW divides by the gradient's size: the gradient of a key's bias is 0 but for rounding, and
# would become a step of full length.
ADAMW = ["training.clip_norm=1", "training.optimizer.eps=1e-3"]
CASES = {
    "ddp": [],
    "ddp, Muon": ["training.optimizer=Muon", *ADAMW],
    "ddp, recompute": ["training.recompute=layer"],
    "ddp, sparse gradients": ["tie=none", "input.sparse=true"],
    "ddp, sparse gradients, AdamW": [
        *("tie=none", "input.sparse=true", "training.optimizer=AdamW"),
        *ADAMW,
    ],
    "fsdp": ["training.parallel=fsdp"],
    "fsdp, recompute": ["training.parallel=fsdp", "training.recompute=layer"],
    # Not Muon: torch orthogonalises in bfloat16, where sharded products round differently.
    "fsdp, AdamW": ["training.parallel=fsdp", "training.optimizer=AdamW", *ADAMW],
}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(word_data, tmp_path, case):
    """One process accumulates four batches an update, two accumulate two each."""
    overrides = [*SAME, "training.tokens_per_update=256", *CASES[case]]
    run(word_data, tmp_path / "one", *overrides)
    run_together(word_data, tmp_path / "two", *overrides)
    assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), **TOLERANCE)
    ours, theirs = (validations(tmp_path / name)[-1] for name in ("two", "one"))
    assert (ours.tokens, ours.words) == (theirs.tokens, theirs.words)
    assert ours.nats_per_word == pytest.approx(theirs.nats_per_word, rel=1e-5)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(word_data, tmp_path, parallel):
    """The same batches make up the same updates, so the result is that of one process."""
    long, short = [*SAME, "training.max_updates=9"], [*SAME, "training.max_updates=3"]
    middle = [*SAME, "training.max_updates=6", f"training.parallel={parallel}"]
    run(word_data, tmp_path / "one", *long)
    run(word_data, tmp_path / "mixed", *short)
    run_together(word_data, tmp_path / "mixed", *middle)
    run(word_data, tmp_path / "mixed", *long, resume=True)
    assert_close(weights(tmp_path / "mixed"), weights(tmp_path / "one"), **TOLERANCE)


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
