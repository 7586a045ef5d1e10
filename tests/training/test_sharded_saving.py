"""Checkpoints of several processes."""

import os
import pickle
import shutil
import signal
import threading
import time
import zipfile
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from training_runs import (
    assert_close,
    in_processes,
    read_contents,
    run,
    run_together,
    weights,
)

from zipflm.data.folder import DataFolder
from zipflm.distributed.processes import Process
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import load_run
from zipflm.runs.sharded import ShardWriter
from zipflm.training.checkpointing import local_part
from zipflm.training.trainer import train

pytestmark = [pytest.mark.slow, pytest.mark.multi_process]

# For two and three processes, without dropout, which differs between processes.
SAME = ["training.tokens_per_update=384", "decoder.dropout=0", "output.tail_dropout=0"]
SAME += ["decoder.ffn_dim=19", "training.optimizer=AdamW", "training.optimizer.eps=1e-3"]
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


def updates(number):
    return f"training.max_updates={number}"


@pytest.fixture(scope="module")
def of_three(word_data, tmp_path_factory):
    """A run of three processes with FSDP, and two checkpoints."""
    out = tmp_path_factory.mktemp("three") / "run"
    overrides = ["training.parallel=fsdp", "training.checkpoint_every=2", updates(4)]
    run_together(word_data, out, *SAME, *overrides, processes=3)
    return out


@pytest.fixture
def copy(of_three, tmp_path):
    return RunFolder(shutil.copytree(of_three, tmp_path / "copy"))


def test_the_number_of_processes_can_change(word_data, of_three, tmp_path):
    """From three to two, one and two again, with the results of one process."""
    out = Path(shutil.copytree(of_three, tmp_path / "mixed"))
    run_together(word_data, out, *SAME, updates(6), "training.parallel=ddp", processes=2)
    run(word_data, out, *SAME, updates(8), resume=True)
    assert not RunFolder(out).choose(8).is_sharded and RunFolder(out).choose(6).is_sharded
    run_together(word_data, out, *SAME, updates(9), "training.parallel=fsdp", processes=2)
    run(word_data, tmp_path / "one", *SAME, "training.checkpoint_every=2", updates(9), keep=0)
    for update in (6, 8, 9):
        assert_close(weights(out, update), weights(tmp_path / "one", update), **TOLERANCE)
    assert RunFolder(out).choose(9).state().world_size == 2


def test_each_process_saves_its_part(copy):
    checkpoint = copy.choose(4)
    assert checkpoint.is_sharded and len(checkpoint.weights_files) == 3
    sizes = [(checkpoint.path / name).stat().st_size for name in checkpoint.weights_files]
    assert max(sizes) < 1.5 * min(sizes)
    count = sum(
        tensor.numel()
        for name in checkpoint.weights_files
        for tensor in load_file(checkpoint.path / name).values()
    )
    assert count == load_run(copy.path).config.num_params()


def _count_reads(path, out, overrides):
    """Resume, and count the numbers that this process reads from the checkpoint."""
    torch.set_num_threads(1)
    true_read, counts = HuggingFaceStorageReader._process_read_request, []

    def read(self, file, request, planner):
        counts.append(request.lengths.numel())
        true_read(self, file, request, planner)

    HuggingFaceStorageReader._process_read_request = read
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        run(DataFolder.open(path), out, *overrides, resume=True)
    out.with_name(f"read-{os.environ['RANK']}").write_text(str(sum(counts)))


def test_a_process_reads_only_its_shards(word_data, copy):
    contents = read_contents(copy.choose(4))
    tensors = [*contents.weights.values(), *contents.optimizer.values()]
    whole = sum(tensor.numel() for tensor in tensors)
    overrides = [*SAME, updates(5), "training.parallel=fsdp"]
    assert in_processes(3, _count_reads, word_data.path, copy.path, overrides) == [0] * 3
    read = [int(copy.path.with_name(f"read-{rank}").read_text()) for rank in range(3)]
    assert sum(read) <= whole + 3 * len(tensors)  # all processes read scalars
    assert max(read) < 0.45 * whole


def test_uses_no_pickle(word_data, copy, tmp_path, monkeypatch):
    for path in copy.choose(4).path.iterdir():
        assert not zipfile.is_zipfile(path)
        with pytest.raises(Exception):  # noqa: B017
            pickle.loads(path.read_bytes())

    def fail(*arguments, **options):
        raise AssertionError("a pickle was read")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, fail)
    monkeypatch.setattr(torch, "load", fail)
    load_run(copy.path)
    run(word_data, copy.path, *SAME, updates(5), resume=True)


@pytest.mark.parametrize("kind", ["1", "2"])
def test_reports_a_missing_shard(word_data, copy, capsys, kind):
    newest = copy.choose(4)
    lost = newest.path / f"shard-00002-model-0000{kind}-of-00002.safetensors"
    lost.unlink()
    with pytest.raises(ValueError, match=f"{lost.name}: missing"):
        newest.verify()
    if kind == "1":
        with pytest.raises(ValueError, match=f"{lost.name}: missing"):
            load_run(copy.path)
        assert load_run(copy.path, 2).checkpoint.update == 2
    else:
        load_run(copy.path)  # needs no optimizer
    # Training continues from the previous checkpoint.
    run(word_data, copy.path, *SAME, updates(3), resume=True)
    assert f"{lost.name}: missing" in capsys.readouterr().out
    assert [checkpoint.update for checkpoint in copy.checkpoints()] == [3, 2]


def test_finds_a_damaged_shard(word_data, copy):
    path = copy.choose(4).path / "shard-00003-model-00002-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    run_together(word_data, copy.path, *SAME, updates(3), "training.parallel=fsdp")
    assert (copy.checkpoints_path / ".damaged-update-00000004").is_dir()
    assert [checkpoint.update for checkpoint in copy.checkpoints()] == [3, 2]


def _train_slowly(path, out, overrides, wait, dies):
    """Train, but the second process writes update 4 slowly, or all die while saving it."""
    torch.set_num_threads(1)
    true_write = ShardWriter.write_data

    def write(self, plan, planner):
        is_second = os.environ["RANK"] == "1"
        if "update-00000004" in str(self.unfinished) and (is_second or dies):
            if not is_second:
                true_write(self, plan, planner)
            time.sleep(wait)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
        return true_write(self, plan, planner)

    ShardWriter.write_data = write
    from training_runs import config_of

    data = DataFolder.open(path)
    config = config_of(data, *overrides)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        train(config, data, out, device="cpu", resume=True, keep=0)


EVERY = [*SAME, "training.checkpoint_every=2", "training.report_every=1"]


def test_training_continues_while_a_checkpoint_is_saved(word_data, tmp_path):
    out = tmp_path / "run"
    overrides = [*EVERY, updates(7), "training.parallel=fsdp", "training.validate_every=0"]
    seen = threading.Event()

    def look():
        """Check that updates after 4 are logged before its checkpoint exists."""
        for _ in range(2_000):
            log = (out / "log.jsonl").read_text() if (out / "log.jsonl").exists() else ""
            there = (out / "checkpoints" / "update-00000004").exists()
            if '"update": 5' in log and not there:
                seen.set()
            time.sleep(0.05)
            if there:
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    assert in_processes(2, _train_slowly, word_data.path, out, overrides, 3.0, False) == [0, 0]
    watcher.join()
    assert seen.is_set()
    assert [c.update for c in RunFolder(out).checkpoints()] == [7, 6, 4, 2]
    run(word_data, tmp_path / "one", *EVERY, updates(4), "training.validate_every=0")
    # The checkpoint has the weights of update 4.
    assert_close(weights(out, 4), weights(tmp_path / "one", 4), **TOLERANCE)


def test_can_be_killed_while_saving(word_data, tmp_path):
    out = tmp_path / "run"
    overrides = [*EVERY, updates(6), "training.parallel=fsdp"]
    codes = in_processes(2, _train_slowly, word_data.path, out, overrides, 0.5, True)
    assert codes == [-signal.SIGKILL] * 2
    folder = RunFolder(out)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [2]
    folder.choose(2).verify()
    assert list(folder.checkpoints_path.glob(".update-00000004*"))
    run_together(word_data, out, *overrides)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [6, 4, 2]
    assert not list(folder.checkpoints_path.glob(".*"))
    run(word_data, tmp_path / "one", *EVERY, updates(6))
    assert_close(weights(out), weights(tmp_path / "one"), **TOLERANCE)


def _fail_to_save(path, out, overrides, at):
    """Simulate a full disk in one process at these updates."""
    torch.set_num_threads(1)
    true_write = HuggingFaceStorageWriter.write_data

    def write(self, plan, planner):
        full = any(f"update-{update:08d}" in str(self.unfinished) for update in at)
        if full and os.environ["RANK"] == "1":
            raise OSError(28, "No space left on device")
        return true_write(self, plan, planner)

    HuggingFaceStorageWriter.write_data = write
    rank = os.environ["RANK"]
    with open(out.with_name(f"output-{rank}"), "w") as output, redirect_stdout(output):
        try:
            run(DataFolder.open(path), out, *overrides, resume=True)
        except OSError as error:
            print(error)
            raise SystemExit(2) from None


def test_reports_a_failed_save_and_tries_again(word_data, tmp_path):
    out, overrides = tmp_path / "run", [*EVERY, updates(6), "training.parallel=fsdp"]
    assert in_processes(2, _fail_to_save, word_data.path, out, overrides, [4]) == [0, 0]
    folder = RunFolder(out)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [6, 2]
    assert not list(folder.checkpoints_path.glob(".*"))
    output = (tmp_path / "output-0").read_text()
    reason = f"{folder.checkpoints_path / 'update-00000004'}: No space left on device"
    assert f"could not save update 4 ({reason}" in output
    assert f"the newest checkpoint is {folder.choose(2).path}; free some space" in output


def test_a_failure_of_the_last_save_is_an_error(word_data, tmp_path):
    out, overrides = tmp_path / "run", [*EVERY, updates(6), "training.parallel=ddp"]
    assert in_processes(2, _fail_to_save, word_data.path, out, overrides, [6]) == [2, 2]
    assert [checkpoint.update for checkpoint in RunFolder(out).checkpoints()] == [4, 2]


def test_distributes_replicated_tensors():
    tensors = {str(size): torch.zeros(size) for size in (7, 5, 4, 3, 1)}
    parts = [local_part(tensors, Process(rank, 3, torch.device("cpu"))) for rank in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(tensors)
    assert [sum(t.numel() for t in part.values()) for part in parts] == [10, 6, 4]
