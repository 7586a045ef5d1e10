"""Interrupted and resumed, a run ends where it would have ended."""

import json
import shutil

import pytest
from training_runs import SMALL, assert_close, assert_same, config_of, reports, run, weights

from zipflm.config import Config
from zipflm.records import from_dict
from zipflm.runs import provenance
from zipflm.runs.folder import RunFolder
from zipflm.training.log import Log


@pytest.mark.parametrize("recipe", ["paper", "modern"])
def test_ten_and_ten_updates_are_twenty(word_data, tmp_path, recipe):
    # Without decay the modern schedule does not depend on the length of the run.
    modern = ["training.schedule.decay=0", "training.schedule.warmup=0", *SMALL[:-2]]
    options = {"recipe": recipe, "base": SMALL if recipe == "paper" else modern}
    run(word_data, tmp_path / "whole", "training.max_updates=20", **options)
    run(word_data, tmp_path / "halves", "training.max_updates=10", **options)
    run(word_data, tmp_path / "halves", "training.max_updates=20", resume=True, **options)
    assert_same(weights(tmp_path / "halves"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sixteen_bits_resume_bit_for_bit(word_data, tmp_path, precision):
    override = f"training.precision={precision}"
    run(word_data, tmp_path / "whole", override, "training.max_updates=8")
    run(word_data, tmp_path / "halves", override, "training.max_updates=3")
    run(word_data, tmp_path / "halves", override, "training.max_updates=8", resume=True)
    assert_same(weights(tmp_path / "halves"), weights(tmp_path / "whole"))


def test_resuming_goes_through_epochs_and_stages(word_data, tmp_path):
    """Some 18 batches an epoch: 13 updates of two end amid the second, after a change of block."""
    stages = "training.stages=0.3:8,0.6:4"
    common = ["training.max_updates=20", "training.checkpoint_every=13", stages]
    run(word_data, tmp_path / "whole", *common, keep=0)
    assert (place := state_of(tmp_path / "whole", 13)["place"])["epoch"] == 1
    assert 0 < place["consumed"] < place["total"]
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "update-00000020")
    run(word_data, tmp_path / "part", *common, resume=True)
    assert_same(weights(tmp_path / "part"), weights(tmp_path / "whole"))


def state_of(out, update):
    path = out / "checkpoints" / f"update-{update:08d}" / "state.json"
    return json.loads(path.read_text())


def test_the_log_has_every_update_once_after_resuming(word_data, tmp_path):
    every = ["training.report_every=1", "training.checkpoint_every=4", "training.max_updates=6"]
    run(word_data, tmp_path / "run", *every)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "update-00000006")
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"update": 6, "lo')
    run(word_data, tmp_path / "run", *every, resume=True)
    assert [report.update for report in reports(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_resuming_nothing_starts_from_the_beginning(word_data, tmp_path):
    assert run(word_data, tmp_path / "run", "training.max_updates=2", resume=True)


@pytest.mark.parametrize("length", [4, 2])
def test_resuming_a_finished_run_says_so_and_writes_nothing(word_data, tmp_path, capsys, length):
    run(word_data, tmp_path / "run", "training.max_updates=4")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    capsys.readouterr()
    options = [f"training.max_updates={length}", "training.report_every=7"]
    assert run(word_data, tmp_path / "run", *options, resume=True)
    assert f"already finished (update 4 of {length})" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_every_session_of_a_run_is_recorded(word_data, tmp_path, monkeypatch):
    for update, commit in ((2, "first"), (4, "second"), (6, "third")):
        monkeypatch.setattr(provenance, "commit", lambda package, commit=commit: commit)
        run(word_data, tmp_path / "run", f"training.max_updates={update}", resume=True)
    versions = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert versions["commit"] == "first"
    sessions = [(session["update"], session["commit"]) for session in versions["resumed"]]
    assert sessions == [(2, "second"), (4, "third")]


def test_the_bar_of_a_terminal_starts_where_the_run_does(word_data, tmp_path, monkeypatch):
    began, seen = [], []
    monkeypatch.setattr(Log, "begin", lambda self, update: began.append(update))
    monkeypatch.setattr(Log, "advance", lambda self, update: seen.append(update))
    run(word_data, tmp_path / "run", "training.max_updates=2")
    run(word_data, tmp_path / "run", "training.max_updates=5", resume=True)
    assert began == [0, 2] and seen == [1, 2, 3, 4, 5]


def test_the_random_state_is_a_function_of_seed_and_update(word_data, tmp_path):
    run(word_data, tmp_path / "a", "training.max_updates=3", "training.seed=5")
    run(word_data, tmp_path / "b", "training.max_updates=3", "training.seed=5")
    run(word_data, tmp_path / "c", "training.max_updates=3", "training.seed=6")
    assert_same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    with pytest.raises(AssertionError):
        assert_close(weights(tmp_path / "a"), weights(tmp_path / "c"))


def damage(out, update):
    path = out / "checkpoints" / f"update-{update:08d}" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(word_data, tmp_path, capsys):
    common = ["training.max_updates=6", "training.checkpoint_every=2"]
    run(word_data, tmp_path / "run", *common)
    expected = weights(tmp_path / "run")
    damaged = damage(tmp_path / "run", 6)
    capsys.readouterr()
    run(word_data, tmp_path / "run", *common, resume=True)
    said = capsys.readouterr().out
    assert str(damaged) in said and "resuming after update 4" in said
    assert_same(weights(tmp_path / "run"), expected)


def test_a_damaged_checkpoint_does_not_outlive_good_ones(word_data, tmp_path, capsys):
    """It is newer than all that the resumed run saves, and must not count among them."""
    out, every = tmp_path / "run", "training.checkpoint_every=2"
    run(word_data, out, every, "training.max_updates=6", keep=2)
    damage(out, 6)
    run(word_data, out, every, "training.max_updates=5", resume=True, keep=1)
    aside = out / "checkpoints" / ".damaged-update-00000006"
    assert aside.is_dir() and str(aside) in capsys.readouterr().out
    assert [checkpoint.update for checkpoint in RunFolder(out).checkpoints()] == [5]
    assert RunFolder(out).newest_contents(pytest.fail).state.update == 5


def test_a_damaged_checkpoint_is_not_the_best(word_data, tmp_path):
    every = ["training.checkpoint_every=2", "training.validate_every=2", "training.max_updates=6"]
    run(word_data, tmp_path / "run", *every, keep=0)
    first = RunFolder(tmp_path / "run").best()
    damage(tmp_path / "run", first.update)
    second = RunFolder(tmp_path / "run").best()
    assert second.update != first.update
    second.verify()


def test_an_unfinished_checkpoint_is_not_seen_and_removed(word_data, tmp_path):
    run(word_data, tmp_path / "run", "training.max_updates=2")
    left = tmp_path / "run" / "checkpoints" / ".update-00000003.77"
    left.mkdir()
    assert [checkpoint.update for checkpoint in RunFolder(tmp_path / "run").checkpoints()] == [2]
    run(word_data, tmp_path / "run", "training.max_updates=3", resume=True)
    assert not left.exists()


@pytest.mark.parametrize("keep", [1, 2, 0])
def test_the_newest_and_the_best_are_kept(word_data, tmp_path, keep):
    every = ["training.checkpoint_every=2", "training.validate_every=2", "training.max_updates=10"]
    run(word_data, tmp_path / "run", *every, keep=keep)
    folder = RunFolder(tmp_path / "run")
    newest = (10, 8, 6, 4, 2)[: keep or 5]
    assert {checkpoint.update for checkpoint in folder.checkpoints()} == {
        *newest,
        folder.best().update,
    }


def test_the_model_of_a_run_cannot_change(word_data, tmp_path):
    run(word_data, tmp_path / "run", "training.max_updates=1")
    with pytest.raises(ValueError, match="decoder.num_layers=1, not the 2 asked for"):
        run(word_data, tmp_path / "run", "decoder.num_layers=2", resume=True)
    with pytest.raises(ValueError, match="optimizer=Nesterov, not the AdamW"):
        run(word_data, tmp_path / "run", "training.optimizer=AdamW", resume=True)


def test_a_folder_with_another_vocabulary_is_refused(word_data, other_data, tmp_path):
    run(word_data, tmp_path / "run", "training.max_updates=1")
    hashes = word_data.vocabulary.hash[:12], other_data.vocabulary.hash[:12]
    with pytest.raises(ValueError, match="|".join(hashes)):
        run(other_data, tmp_path / "run", "training.max_updates=2", resume=True)


def test_a_folder_that_holds_a_run_is_not_overwritten(word_data, tmp_path):
    run(word_data, tmp_path / "run", "training.max_updates=1")
    with pytest.raises(ValueError, match="already holds a run of tiny/ADP-T.*--resume"):
        run(word_data, tmp_path / "run", "training.max_updates=1")


def test_a_run_that_never_began_may_be_started_again(word_data, tmp_path):
    run(word_data, tmp_path / "run", "training.max_updates=1")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "log.jsonl").unlink()
    assert run(word_data, tmp_path / "run", "training.max_updates=1", "batches.tokens=32")


def test_a_config_survives_its_file(word_data, tmp_path):
    run(word_data, tmp_path / "run", "training.max_updates=1", "training.stages=0.5:8")
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    expected = config_of(word_data, "training.max_updates=1", "training.stages=0.5:8")
    assert from_dict(Config, saved) == expected
