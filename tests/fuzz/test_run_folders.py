"""A damaged run reads the same as before, or is rejected with the name of the file."""

import shutil

import pytest
import torch
from fuzz.cases import limited_memory, limited_time, tried
from fuzz.folders import Folder, require_named
from fuzz.mutations import (
    altered_json,
    altered_json_lines,
    altered_lines,
    damaged,
    put_in_place,
    replace_file,
)
from safetensors.torch import load_file, save_file
from sharded_checkpoints import in_shards
from training_runs import read_contents

from zipflm.distributed.processes import Process
from zipflm.evaluation.evaluate import ScoringOptions, score_split
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import load_run
from zipflm.storage import seal
from zipflm.training.checks import check_run_folder
from zipflm.training.setup import newest_valid

OPTIONS = ScoringOptions(device="cpu")
OWN = ["config.json", "versions.json", "log.jsonl"]  # without checksums: users may edit these


class Run:
    def __init__(self, path, data):
        self.data, self.newest = data, RunFolder(path).choose("newest").path
        saved = [str(file.relative_to(path)) for file in self.newest.iterdir()]
        self.folder = Folder(path, [*OWN, *saved])
        self.before = {name: self.read(name) for name in self.folder.originals}

    @property
    def path(self):
        return self.folder.path

    def read(self, name):
        """Read everything that depends on this file."""
        run = RunFolder(self.path)
        if name == "log.jsonl":
            return run.log()
        if name in OWN:
            held = run.config()
            check_run_folder(run, held, self.data, resume=True)
            return held, run.versions(), [checkpoint.update for checkpoint in run.checkpoints()]
        contents = read_contents(run.choose("newest"))
        loaded = load_run(self.path)
        scores = score_split(loaded, self.data, "valid", OPTIONS).scores
        found = [contents.state, contents.config, contents.vocabulary.words]
        found += [contents.vocabulary.counts.tolist(), loaded.codes and loaded.codes.merges]
        found += [scores.nll.tolist(), scores.protocol, loaded.checkpoint.name]
        for tensors in (contents.weights, contents.optimizer):
            found.append({key: tensor.tolist() for key, tensor in sorted(tensors.items())})
        return found


@pytest.fixture
def runs(trained_runs, tmp_path):
    """Runs saved by one process, and one in shards of two."""
    copies = [(shutil.copytree(path, tmp_path / path.name), d) for path, d in trained_runs.items()]
    sharded = shutil.copytree(copies[0][0], tmp_path / "sharded")
    in_shards(RunFolder(sharded).choose("newest"), 2)
    return [Run(path, data) for path, data in [*copies, (sharded, copies[0][1])]]


def changed(rng, name, data):
    if name in OWN and name.endswith(".json") and rng.random() < 0.7:
        return altered_json(rng, data)
    if name.endswith(".jsonl") and rng.random() < 0.7:
        return altered_json_lines(rng, data)
    if name.endswith((".txt", ".codes")) and rng.random() < 0.5:
        return altered_lines(rng, data)
    return damaged(rng, data)


def require_refusal(error, name, run):
    names = [name.rpartition("/")[2] for name in run.before]
    require_named(error, run.path, [str(run.path)] if name in OWN else names)


def attempt_on(runs):
    def attempt(rng):
        run = rng.choice(runs)
        name = rng.choice(sorted(run.folder.originals))
        has_sums = name not in OWN
        try:
            if rng.random() < 0.1:
                run.folder.touch(name)
                replace_file(rng, run.path / name)
                has_sums = name != "log.jsonl"  # may be absent
            else:
                run.folder.write(name, changed(rng, name, run.folder.originals[name]))
            after = run.read(name)
            if has_sums:
                assert after == run.before[name], f"{name}: other numbers"
            return "the same" if after == run.before[name] else "read"
        except (ValueError, OSError) as error:
            require_refusal(error, name, run)
            return "refused"
        finally:
            run.folder.restore()

    return attempt


@pytest.mark.timeout(0)  # --fuzz-seconds is the limit
def test_fuzz_runs(runs, fuzz_seed, fuzz_seconds):
    outcomes = tried(attempt_on(runs), fuzz_seed, fuzz_seconds)
    assert outcomes["refused"] > 10 and outcomes["the same"] + outcomes["read"] > 0


# --- Bugs found by fuzzing ---


@pytest.fixture
def copy(trained_runs, tmp_path):
    return RunFolder(shutil.copytree(list(trained_runs)[1], tmp_path / "copy"))


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_rejects_pipes_and_folders(copy, kind):
    read = {"config.json": copy.config, "versions.json": copy.versions, "log.jsonl": copy.log}
    for name, method in read.items():
        (copy.path / name).unlink()
        put_in_place(copy.path / name, kind)
        refused = pytest.raises(ValueError, match=f"{name}: not a file")
        with limited_time(), limited_memory(), refused:
            method()


def test_falls_back_to_the_previous_checkpoint(copy):
    newest = copy.choose("newest")
    (newest.path / "state.json").unlink()
    put_in_place(newest.path / "state.json", "pipe")
    with limited_time(), pytest.raises(ValueError, match="state.json: not a file"):
        newest.state()
    with limited_time():
        alone = Process(0, 1, torch.device("cpu"))
        assert newest_valid(copy, alone, warn=str).update == 2
        assert copy.choose("best").update == 2


def test_rejects_weights_of_another_type(copy):
    folder = copy.choose("newest").path
    weights = load_file(folder / "weights.safetensors")
    name = "decoder.layers.0.ffn_in.bias"
    save_file(weights | {name: weights[name].double()}, folder / "weights.safetensors")
    seal(folder)
    with pytest.raises(ValueError, match=f"weights.safetensors: .*{name} has dtype torch.float64"):
        load_run(copy.path)
