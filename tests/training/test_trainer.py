import json
import shutil
import sys
from functools import partial

import pytest
import torch
from training_runs import (
    SMALL,
    assert_same,
    config_of,
    disturb,
    reports,
    run,
    run_together,
    validations,
    weights,
)

from zipflm.data.prepare import Options, prepare
from zipflm.runs import provenance
from zipflm.runs.folder import RunFolder
from zipflm.training import checkpointing, parallel, step, trainer


@pytest.mark.parametrize(("every", "updates"), [(0, [7]), (3, [3, 6, 7])])
def test_reports_validates_and_saves_every_n_updates_and_at_the_end(
    word_data, tmp_path, every, updates
):
    options = [f"training.{name}_every={every}" for name in ("validate", "checkpoint")]
    options += [f"training.report_every={every or 100}"]
    run(word_data, tmp_path, "training.max_updates=7", *options, keep=0)
    assert [report.update for report in reports(tmp_path)] == [1, *updates]  # the first, too
    assert [line.update for line in validations(tmp_path)] == updates
    checkpoints = RunFolder(tmp_path).checkpoints()
    assert [checkpoint.update for checkpoint in reversed(checkpoints)] == updates
    scored = [checkpoint.state().valid for checkpoint in reversed(checkpoints)]
    assert scored == validations(tmp_path)


def test_reporting_and_validating_do_not_change_the_result(word_data, tmp_path):
    length = "training.max_updates=6"
    run(word_data, tmp_path / "alone", length)
    names = ("report", "validate", "checkpoint")
    run(word_data, tmp_path / "watched", length, *(f"training.{name}_every=1" for name in names))
    assert_same(weights(tmp_path / "watched"), weights(tmp_path / "alone"))


def test_trains_without_a_valid_set(word_data, tmp_path, monkeypatch):
    splits = {"train": word_data.metadata.splits["train"]}
    monkeypatch.setattr(type(word_data), "splits", tuple(splits))
    run(word_data, tmp_path, "training.max_updates=2", "training.validate_every=1")
    assert validations(tmp_path) == [] and len(reports(tmp_path)) == 2
    assert RunFolder(tmp_path).choose("newest").state().valid is None


def test_a_failed_save_ends_the_run_only_at_its_end(word_data, tmp_path, monkeypatch, capsys):
    save, fails = checkpointing.save, {4, 8}

    def full(root, contents):
        if contents.state.update in fails:
            raise OSError(28, "No space left on device")
        return save(root, contents)

    monkeypatch.setattr(checkpointing, "save", full)
    options = ["training.max_updates=8", "training.checkpoint_every=2"]
    with pytest.raises(OSError, match=r"could not save update 8 .*update-00000006; free"):
        run(word_data, tmp_path / "run", *options, keep=0)
    assert "could not save update 4" in capsys.readouterr().out
    assert [c.update for c in RunFolder(tmp_path / "run").checkpoints()] == [6, 2]
    fails.clear()
    run(word_data, tmp_path / "run", *options, resume=True)
    run(word_data, tmp_path / "whole", *options)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("recipe", "more"),
    [("paper", []), ("paper", ["training.dtype=float16"]), ("modern", [])],
    ids=["paper", "float16", "modern"],
)
def test_resumes_bit_for_bit(word_data, tmp_path, recipe, more):
    # Without decay the modern schedule does not depend on the length of the run.
    modern = ["training.schedule.decay=0", "training.schedule.warmup=0", *SMALL[:-2]]
    options = {"recipe": recipe, "base": SMALL if recipe == "paper" else modern}
    run(word_data, tmp_path / "whole", "training.max_updates=10", *more, **options)
    run(word_data, tmp_path / "halves", "training.max_updates=5", *more, **options)
    run(word_data, tmp_path / "halves", "training.max_updates=10", *more, resume=True, **options)
    assert_same(weights(tmp_path / "halves"), weights(tmp_path / "whole"))


def test_resumes_bit_for_bit_across_epochs_and_stages(word_data, tmp_path):
    """After 13 updates, in the middle of the second epoch and after a change of block."""
    stages = "training.stages=0.3:8,0.6:4"
    common = ["training.max_updates=20", "training.checkpoint_every=13", stages]
    run(word_data, tmp_path / "whole", *common, keep=0)
    assert (place := state_of(tmp_path / "whole", 13)["place"])["epoch"] == 1
    assert 0 < place["consumed"] < place["total"]
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "update-00000020")
    run(word_data, tmp_path / "part", *common, resume=True)
    assert_same(weights(tmp_path / "part"), weights(tmp_path / "whole"))


def test_resumes_a_character_cnn_bit_for_bit(word_data, tmp_path, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)  # the order of sums then depends on the shapes

    def train(out, updates, **options):
        length = f"training.max_updates={updates}"
        base = [setting for setting in SMALL if not setting.startswith("input.")]
        config = config_of(word_data, length, preset="tiny/CNN", base=base)
        trainer.train(config, word_data, tmp_path / out, device="cpu", **options)

    train("whole", 12)
    train("halves", 6)
    train("halves", 12, resume=True)
    assert_same(weights(tmp_path / "halves"), weights(tmp_path / "whole"))


def state_of(out, update):
    path = out / "checkpoints" / f"update-{update:08d}" / "state.json"
    return json.loads(path.read_text())


def test_resuming_a_finished_run_writes_nothing(word_data, tmp_path, capsys):
    run(word_data, tmp_path / "run", "training.max_updates=4")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    options = ["training.max_updates=2", "training.report_every=7"]
    assert run(word_data, tmp_path / "run", *options, resume=True)
    assert "already finished (update 4 of 2)" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_records_every_resumption(word_data, tmp_path, monkeypatch):
    for update, commit in ((2, "first"), (4, "second"), (6, "third")):
        monkeypatch.setattr(provenance, "commit", lambda package, commit=commit: commit)
        run(word_data, tmp_path / "run", f"training.max_updates={update}", resume=True)
    versions = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert versions["commit"] == "first"
    sessions = [(session["update"], session["commit"]) for session in versions["resumed"]]
    assert sessions == [(2, "second"), (4, "third")]


def test_falls_back_from_a_damaged_checkpoint(word_data, tmp_path, capsys):
    """The damaged one is newer than all that the resumed run saves, and must not count."""
    out, every = tmp_path / "run", "training.checkpoint_every=2"
    run(word_data, out, every, "training.max_updates=6", keep=2)
    path = out / "checkpoints" / "update-00000006" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    run(word_data, out, every, "training.max_updates=5", resume=True, keep=1)
    moved, output = out / "checkpoints" / ".damaged-update-00000006", capsys.readouterr().out
    assert moved.is_dir() and all(each in output for each in (str(moved), str(path)))
    assert "resuming after update 4" in output
    assert [checkpoint.update for checkpoint in RunFolder(out).checkpoints()] == [5]
    run(word_data, tmp_path / "whole", every, "training.max_updates=5")
    assert_same(weights(out), weights(tmp_path / "whole"))


@pytest.mark.parametrize("keep", [1, 0])
def test_keeps_the_newest_and_the_best(word_data, tmp_path, keep):
    every = ["training.checkpoint_every=2", "training.validate_every=2", "training.max_updates=6"]
    run(word_data, tmp_path / "run", *every, keep=keep)
    folder = RunFolder(tmp_path / "run")
    newest, best = (6, 4, 2)[: keep or 3], folder.best().update
    assert {checkpoint.update for checkpoint in folder.checkpoints()} == {*newest, best}


OUT_OF_MEMORY = {
    "device": torch.OutOfMemoryError("CUDA out of memory"),
    "host": RuntimeError("DefaultCPUAllocator: not enough memory"),
}


@pytest.mark.parametrize("where", OUT_OF_MEMORY)
def test_explains_out_of_memory_in_an_update(word_data, tmp_path, monkeypatch, where):
    def forward(learner, batch):
        raise OUT_OF_MEMORY[where]

    monkeypatch.setattr(step, "forward", forward)
    with pytest.raises(ValueError, match="tokens=64: not enough memory.*to 32.*recompute=layer"):
        run(word_data, tmp_path / "run", "training.max_updates=1")


def test_explains_out_of_memory_for_the_model(word_data, tmp_path, monkeypatch):
    def fail(model, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(parallel, "allocate", fail)
    with pytest.raises(ValueError, match="not enough memory for 2,864 parameters .*lower decoder"):
        run(word_data, tmp_path / "run", "training.max_updates=1")


def test_other_errors_are_not_reported_as_out_of_memory(word_data, tmp_path, monkeypatch):
    def fail(learner, batch):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(step, "forward", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(word_data, tmp_path / "run", "training.max_updates=1")


def test_tensorboard_must_be_installed(word_data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        run(word_data, tmp_path / "run", "training.tensorboard=true")


@pytest.mark.parametrize(
    ("epochs", "more"),
    [(0.5, []), (2, ["training.stages=0.5:8"]), (2, ["batches.break_mode=complete"])],
)
def test_trains_for_the_requested_epochs(word_data, tmp_path, epochs, more):
    quick = ["training.tokens_per_update=256", "training.report_every=1000", *more]
    run(word_data, tmp_path, f"training.epochs={epochs}", *quick)
    training = RunFolder(tmp_path).config().training
    last = reports(tmp_path)[-1]
    assert last.update == training.max_updates
    per_update = last.epoch / last.update
    assert epochs - 1e-6 <= last.epoch < epochs + 1.5 * per_update


def test_stretches_the_schedule_to_the_epochs(word_data, tmp_path):
    requested = config_of(word_data, "training.epochs=1").training
    run(word_data, tmp_path, "training.epochs=1")
    made = RunFolder(tmp_path).config().training
    ratio = made.max_updates / requested.max_updates
    assert ratio != 1
    assert made.schedule.first_cycle == round(ratio * requested.schedule.first_cycle)


@pytest.mark.parametrize("updates", [7, 200])  # 200 is the value of the preset
def test_rejects_epochs_with_max_updates(word_data, updates):
    with pytest.raises(ValueError, match=r"training\.epochs"):
        config_of(word_data, "training.epochs=1", f"training.max_updates={updates}")


NOTHING_LEARNED = ["schedule.max_lr=0", "schedule.min_lr=0", "schedule.warmup_from=0"]
NOTHING_LEARNED += ["max_updates=40", "validate_every=2", "patience=3"]
NOTHING_LEARNED = [f"training.{each}" for each in NOTHING_LEARNED]


def test_stops_early(word_data, tmp_path, capsys):
    assert run(word_data, tmp_path, *NOTHING_LEARNED)
    assert [line.update for line in validations(tmp_path)] == [2, 4, 6, 8]
    assert reports(tmp_path)[-1].update == 8
    folder = RunFolder(tmp_path)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [8, 2]
    assert folder.choose("best").update in (2, 8)
    assert "stopped early after update 8" in capsys.readouterr().out
    # It stays finished until patience is raised.
    assert run(word_data, tmp_path, *NOTHING_LEARNED, resume=True)
    assert "already finished" in capsys.readouterr().out
    assert run(word_data, tmp_path, *NOTHING_LEARNED, "training.patience=4", resume=True)
    assert folder.choose("newest").update == 10


def test_does_not_stop_early_while_improving(word_data, tmp_path):
    more = ["training.max_updates=12", "training.validate_every=2", "training.patience=1"]
    run(word_data, tmp_path, *more, keep=0)
    assert [line.update for line in validations(tmp_path)] == [2, 4, 6, 8, 10, 12]
    assert len(RunFolder(tmp_path).checkpoints()) == 6


def test_early_stopping_survives_an_interruption(word_data, tmp_path, monkeypatch):
    run(word_data, tmp_path / "whole", *NOTHING_LEARNED)
    disturb(monkeypatch, interrupt=5)
    out = tmp_path / "parts"
    assert not run(word_data, out, *NOTHING_LEARNED)
    assert run(word_data, out, *NOTHING_LEARNED, resume=True)
    assert RunFolder(out).choose("newest").update == 8
    assert_same(weights(out), weights(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.multi_process
def test_all_processes_stop_early(word_data, tmp_path):
    run_together(word_data, tmp_path / "run", *NOTHING_LEARNED)
    assert RunFolder(tmp_path / "run").choose("newest").update == 8


def test_patience_needs_a_valid_set(word_data, tmp_path):
    with pytest.raises(ValueError, match=r"patience.*validate_every"):
        config_of(word_data, "training.patience=1", "training.validate_every=0")
    text = tmp_path / "text"
    text.write_text("a b c\n" * 400)
    data = prepare(tmp_path / "data", {"train": [str(text)]}, Options())
    with pytest.raises(ValueError, match=r"training\.patience=1: needs a validation set"):
        run(data, tmp_path / "run", "training.patience=1")
