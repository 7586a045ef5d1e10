"""Several processes get the results of one."""

import os
from contextlib import redirect_stdout
from functools import partial

import pytest
import torch
from training_runs import (
    SMALL,
    assert_close,
    config_of,
    in_processes,
    reports,
    run,
    run_together,
    validations,
    weights,
)

from zipflm.data.batches import Batch
from zipflm.data.folder import DataFolder
from zipflm.distributed.processes import started
from zipflm.runs.load import empty_model
from zipflm.training import parallel, step
from zipflm.training.parallel import local_shard
from zipflm.training.step import build_learner
from zipflm.training.trainer import train

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

# For float32 rounding in another order, amplified by several updates.
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}

# Without dropout, which differs between processes.
SAME = ["decoder.dropout=0", "output.tail_dropout=0", "training.max_updates=6"]
# The gradient of the bias of a key is 0 except for rounding, and AdamW would turn it into a step of
# full length.
ADAMW = ["training.clip_norm=1", "training.optimizer.eps=1e-3"]
CASES = {
    "ddp": [],
    "ddp, Muon": ["training.optimizer=Muon", *ADAMW],
    "ddp, recompute": ["training.recompute=layer"],
    "ddp, sparse gradients, AdamW": [
        *("tie=none", "input.sparse=true", "training.optimizer=AdamW"),
        *ADAMW,
    ],
    "fsdp": ["training.parallel=fsdp"],
    # A softmax without tails has an empty weight for its clusters.
    "fsdp, one band": ["training.parallel=fsdp", "input.cutoffs=", "output.cutoffs="],
    "fsdp, recompute": ["training.parallel=fsdp", "training.recompute=layer"],
    "fsdp, Muon": ["training.parallel=fsdp", "training.optimizer=Muon", *ADAMW],
    "fsdp, AdamW": ["training.parallel=fsdp", "training.optimizer=AdamW", *ADAMW],
}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(word_data, tmp_path, case):
    """One process accumulates four batches per update, two accumulate two each."""
    overrides = [*SAME, "training.tokens_per_update=256", *CASES[case]]
    run(word_data, tmp_path / "one", *overrides)
    run_together(word_data, tmp_path / "two", *overrides)
    assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), **TOLERANCE)
    ours, theirs = (validations(tmp_path / name)[-1] for name in ("two", "one"))
    assert (ours.tokens, ours.words) == (theirs.tokens, theirs.words)
    assert ours.nats_per_word == pytest.approx(theirs.nats_per_word, rel=1e-5)


def test_fsdp_in_bfloat16_is_as_good_as_one_process(word_data, tmp_path):
    overrides = [*SAME, "training.dtype=bfloat16", "training.tokens_per_update=256"]
    run(word_data, tmp_path / "one", *overrides)
    run_together(word_data, tmp_path / "two", *overrides, "training.parallel=fsdp")
    assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0.1, atol=0.03)
    ours, theirs = (validations(tmp_path / name)[-1] for name in ("two", "one"))
    assert ours.nats_per_word == pytest.approx(theirs.nats_per_word, rel=2e-3)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_number_of_processes_can_change(word_data, tmp_path, parallel):
    long, short = [*SAME, "training.max_updates=9"], [*SAME, "training.max_updates=3"]
    middle = [*SAME, "training.max_updates=6", f"training.parallel={parallel}"]
    run(word_data, tmp_path / "one", *long)
    run(word_data, tmp_path / "mixed", *short)
    run_together(word_data, tmp_path / "mixed", *middle)
    run(word_data, tmp_path / "mixed", *long, resume=True)
    assert_close(weights(tmp_path / "mixed"), weights(tmp_path / "one"), **TOLERANCE)


TABLES = "training.tables=sharded"
# One process accumulates six batches per update.
SIX = ["decoder.dropout=0", "training.max_updates=6", "training.tokens_per_update=384"]
WIDE, CHARACTERS, TAILS = "input.dim=16", "input.max_bytes=8", "output.tail_dropout=0"
ADAMW_ALONE = ["training.optimizer=AdamW", *ADAMW]
SHARDED = {
    "ddp": ("tiny/ADP-T", [WIDE, TAILS]),
    "ddp, AdamW": ("tiny/ADP", [WIDE, TAILS, *ADAMW_ALONE]),
    "ddp, characters": ("tiny/CNN", [CHARACTERS, TAILS, *ADAMW_ALONE]),
    # With batches of different sizes in each process.
    "ddp, sentences": ("tiny/SM-T", [WIDE, "batches.break_mode=sentence"]),
    "fsdp": ("tiny/ADP-T", [WIDE, TAILS, "training.parallel=fsdp"]),
    "fsdp, one table": ("tiny/SM", [WIDE, "training.parallel=fsdp"]),
}


def run_sharded_cases(path, root, names, *overrides):
    torch.set_num_threads(1)
    data = DataFolder.open(path)
    base = [line for line in SMALL if line != WIDE]
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), started("cpu"):
        for name in names:
            preset, own = SHARDED[name]
            config = config_of(data, *SIX, *own, *overrides, preset=preset, base=base)
            train(config, data, root / name, device="cpu")


@pytest.mark.parametrize(
    ("processes", "names"), [(2, ["ddp", "fsdp"]), (3, list(SHARDED))], ids=["two", "three"]
)
def test_sharded_tables_give_the_same_results(word_data, tmp_path, processes, names):
    one, many = tmp_path / "one", tmp_path / "many"
    run_sharded_cases(word_data.path, one, names)
    codes = in_processes(processes, run_sharded_cases, word_data.path, many, names, TABLES)
    assert codes == [0] * processes
    for name in names:
        assert_close(weights(many / name), weights(one / name), **TOLERANCE)
        ours, theirs = (reports(root / name)[-1] for root in (many, one))
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-3), name
        ours, theirs = (validations(root / name)[-1] for root in (many, one))
        assert (ours.tokens, ours.words) == (theirs.tokens, theirs.words)
        assert ours.nats_per_word == pytest.approx(theirs.nats_per_word, rel=1e-5)


def test_tables_can_be_sharded_for_part_of_a_run(word_data, tmp_path):
    updates = "training.max_updates={}".format
    settings = [*SAME, "training.tokens_per_update=384"]
    run(word_data, tmp_path / "one", *settings, updates(9))
    run_together(word_data, tmp_path / "mixed", *settings, updates(3), TABLES, processes=3)
    run_together(word_data, tmp_path / "mixed", *settings, updates(5), processes=2)
    run_together(word_data, tmp_path / "mixed", *settings, updates(7), TABLES, processes=2)
    run(word_data, tmp_path / "mixed", *settings, updates(9), TABLES, resume=True)
    assert_close(weights(tmp_path / "mixed"), weights(tmp_path / "one"), **TOLERANCE)


def check_own_rows(path):
    """Run one update and check that all tensors have at most the rows of this process."""
    data = DataFolder.open(path)
    config = config_of(
        data, TABLES, "training.optimizer=AdamW", "training.tokens_per_update=192", *SAME
    )
    with started("cpu") as process:
        model = empty_model(config, data.vocabulary)
        fill = partial(parallel.fill, model, 1)
        learner = build_learner(config, model, process, fill=fill)
        words = torch.arange(32).view(2, 16) + process.rank
        batch = Batch(words, words + 1, torch.ones_like(words, dtype=torch.bool))
        nll = step.forward(learner, batch)
        step.backward(learner, nll)
        held = {p: [local_shard(p), local_shard(p.grad)] for p in learner.tables}
        step.apply_gradients(learner, step.sums_of(learner, batch, nll))
        (optimizer,) = learner.optimizers
        names = {name for name, p in model.named_parameters() if p in held}
        assert names == {f"input.embeddings.{band}" for band in range(3)} | {"output.clusters"}
        for p, tensors in held.items():
            state = optimizer.state[p]
            tensors += [local_shard(state[key]) for key in ("exp_avg", "exp_avg_sq")]
            most = -(-len(p) // process.world_size) * p.shape[1]
            for tensor in tensors:
                assert tensor.untyped_storage().nbytes() <= most * tensor.itemsize
            number = torch.tensor([tensor.numel() for tensor in tensors])
            assert process.all_reduce(number).tolist() == [p.numel()] * len(tensors)


def test_a_process_holds_only_its_own_rows(word_data):
    assert in_processes(3, check_own_rows, word_data.path) == [0] * 3
