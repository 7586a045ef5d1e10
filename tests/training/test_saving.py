import shutil

import pytest
import torch
from training_runs import read_contents, run

from zipflm.data.folder import DataFolder
from zipflm.runs.folder import RunFolder
from zipflm.training import step

EVERY = ["training.checkpoint_every=2", "training.report_every=1", "training.max_bad_updates=6"]
NEVER_SCORED = ["training.validate_every=0"]


def break_weights(monkeypatch, update):
    """Fill weights with NaN after this update, counted from 1."""
    true_update, calls = step.update, iter(range(1, 10**6))

    def breaking(learner, batches, stop=False):
        result = true_update(learner, batches, stop)
        if next(calls) == update:
            with torch.no_grad():
                next(learner.model.parameters()).fill_(float("nan"))
        return result

    monkeypatch.setattr(step, "update", breaking)


def updates(out):
    return [checkpoint.update for checkpoint in RunFolder(out).checkpoints()]


def is_finite(out, update):
    weights = RunFolder(out).choose(update).weights()
    return all(bool(value.isfinite().all()) for value in weights.values())


@pytest.mark.parametrize("at", [4, 5], ids=["right before a save", "between two saves"])
def test_a_diverging_run_keeps_a_good_checkpoint(word_data, tmp_path, monkeypatch, at):
    out = tmp_path / "run"
    break_weights(monkeypatch, at)
    with pytest.raises(ValueError, match="training.max_bad_updates=6") as error:
        run(word_data, out, *EVERY, *NEVER_SCORED, "training.max_updates=30", keep=1)
    assert ("update-00000004 may also be bad: remove it" in str(error.value)) == (at == 4)
    sound = [update for update in updates(out) if is_finite(out, update)]
    assert sound, f"all of {updates(out)} are bad"
    assert max(sound) == (2 if at == 4 else 4)
    # Nothing is saved while updates are skipped.
    assert max(updates(out)) == 4


def test_a_signal_saves_even_if_updates_are_skipped(word_data, tmp_path, monkeypatch):
    out, true_update = tmp_path / "run", step.update
    break_weights(monkeypatch, 4)
    breaking, calls = step.update, iter(range(1, 10**6))
    monkeypatch.setattr(
        step,
        "update",
        lambda learner, batches, stop=False: breaking(learner, batches, next(calls) == 7),
    )
    assert not run(word_data, out, *EVERY, *NEVER_SCORED, "training.max_updates=30", keep=1)
    assert max(updates(out)) > 6 and 2 in updates(out)
    state = RunFolder(out).choose("newest").state()
    assert state.skipped_in_a_row == state.skipped == state.update - 4
    monkeypatch.setattr(step, "update", true_update)
    # The resumed run continues to count.
    with pytest.raises(ValueError, match="training.max_bad_updates=6.*up to update 1[01];"):
        run(word_data, out, *EVERY, *NEVER_SCORED, "training.max_updates=30", keep=1, resume=True)
    assert 2 in updates(out)


def test_removes_old_checkpoints_before_the_next_save(word_data, tmp_path, monkeypatch):
    seen, true_update, out = [], step.update, tmp_path / "run"

    def record(learner, batches, stop=False):
        seen.append(updates(out))
        return true_update(learner, batches, stop)

    monkeypatch.setattr(step, "update", record)
    run(word_data, out, *EVERY, *NEVER_SCORED, "training.max_updates=7", keep=1)
    # Update 6 proves the checkpoint of update 4.
    assert seen[2:] == [[2], [2], [4, 2], [4, 2], [6, 4]]


def test_a_non_finite_validation_keeps_old_checkpoints(word_data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    break_weights(monkeypatch, 4)
    with pytest.raises(ValueError, match="training.max_bad_updates=6"):
        run(word_data, out, *EVERY, "training.validate_every=4", "training.max_updates=30", keep=1)
    assert updates(out) == [4, 2] and is_finite(out, 2)


def test_saves_the_last_checkpoint_even_if_updates_are_skipped(word_data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    break_weights(monkeypatch, 4)
    assert run(word_data, out, *EVERY, "training.max_updates=7", keep=1)
    assert updates(out) == [7, 4, 2] and is_finite(out, 2)


@pytest.mark.parametrize("unit", ["word", "bpe"])
def test_checkpoints_do_not_need_the_data_folder(word_data, bpe_data, tmp_path, unit):
    source = word_data if unit == "word" else bpe_data
    shutil.copytree(source.path, tmp_path / "data")
    data = DataFolder.open(tmp_path / "data")
    _ = data.codes
    for name in ("vocabulary.txt", "bpe.codes", "data.json"):
        (tmp_path / "data" / name).unlink(missing_ok=True)
    overrides = ["training.max_updates=4", "training.checkpoint_every=2", f"batches.unit={unit}"]
    run(data, tmp_path / "run", *overrides)
    for checkpoint in RunFolder(tmp_path / "run").checkpoints():
        contents = read_contents(checkpoint)
        assert contents.vocabulary == source.vocabulary
        assert (contents.codes is None) == (unit == "word")
