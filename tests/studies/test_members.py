"""Members from run folders: saved scores, curves and times."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from studies.study_runs import change_metadata, count_loaded, report, validation

from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.runs.folder import RunFolder, append_line
from zipflm.storage import file_hash
from zipflm.studies.members import learning_curve, make_member, score_once
from zipflm.studies.plan import Plan

OPTIONS = ScoringOptions(device="cpu")


@pytest.fixture
def copy(run, tmp_path):
    """A finished run with saved scores, to modify."""
    return shutil.copytree(run, tmp_path / "run")


@pytest.fixture
def own_data(data, tmp_path):
    """A data folder without subwords, to modify."""
    return shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("bpe"))


def losses(run, data, *splits, options=OPTIONS):
    """Losses of all words of the splits."""
    scored = score_once(run, DataFolder.open(data), splits, options)
    return [loss for split in splits for loss in scored.splits[split].nll.tolist()]


def test_saved_scores_match_evaluate(data, copy):
    scored = score_once(copy, DataFolder.open(data), ["valid", "test"], OPTIONS)
    assert scored.checkpoint == "update-00000003"
    for split, found in scored.splits.items():
        expected = evaluate(copy, data=data, split=split, options=OPTIONS).scores
        assert found.nll.tolist() == expected.words().tolist()
        assert found.protocol == expected.protocol


@pytest.mark.parametrize("damage", ["cut short", "no archive", "too few words"])
def test_damaged_scores_are_recomputed(data, copy, damage):
    kept = copy / "scores" / "test.npz"
    good = losses(copy, data, "test")
    whole = kept.read_bytes()
    if damage == "too few words":
        with np.load(kept) as held:
            np.savez(kept, nll=held["nll"][:-1], metadata=held["metadata"])
    else:
        changed = {"cut short": whole[:1000], "no archive": b"x" * len(whole)}
        kept.write_bytes(changed[damage])
    assert losses(copy, data, "test") == good
    assert kept.stat().st_size == len(whole)


def test_scores_of_another_text_are_not_reused(copy, own_data):
    valid, test = losses(copy, own_data, "valid"), losses(copy, own_data, "test")

    def exchange(metadata):
        splits = metadata["splits"]
        splits["valid"], splits["test"] = splits["test"], splits["valid"]

    change_metadata(own_data, exchange)
    assert losses(copy, own_data, "valid") == test != valid


def test_scores_of_other_weights_are_not_reused(data, copy):
    before = losses(copy, data, "valid")
    (checkpoint,) = (copy / "checkpoints").iterdir()
    path = checkpoint / "weights.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path)
    sums = json.loads((checkpoint / "checksums.json").read_text())
    sums[path.name] = file_hash(path)
    (checkpoint / "checksums.json").write_text(json.dumps(sums))
    assert losses(copy, data, "valid") != before


def test_scores_are_reused_across_devices_but_not_options(data, copy, monkeypatch):
    before = losses(copy, data, "valid")
    assert losses(copy, data, "valid", options=replace(OPTIONS, break_mode="none")) != before
    loaded = count_loaded(monkeypatch)
    losses(copy, data, "test", options=replace(OPTIONS, device=None))
    assert loaded == []


def member_of(run, data, scored=None, problem=""):
    folder, words = RunFolder(run), DataFolder.open(data)
    plan = Plan(
        label="ADP-T", factorization="ADP-T", config=folder.config(), data=words, run=folder
    )
    return make_member(plan, words, "test", scored=scored, problem=problem)


def with_log(run, *lines):
    (run / "log.jsonl").write_text("")
    for line in lines:
        append_line(run / "log.jsonl", line)
    return run


def test_member_numbers_match_log_and_scores(data, copy):
    with_log(
        copy,
        report(1, 1.0, 5.0, speed=1.0, memory=9),  # compiling
        report(2, 1.5, 4.5, speed=18.0, memory=7),
        report(3, 2.0, 4.0, speed=20.0, memory=8),
    )
    scored = score_once(copy, DataFolder.open(data), ["valid", "test"], OPTIONS)
    member = member_of(copy, data, scored)
    assert (member.seconds, member.memory, member.tokens_per_second) == (2.0, 9, 18.0)
    assert member.checkpoint == "update-00000003" and member.compiled is None
    assert member.nll is scored.splits["test"].nll
    assert member.scores["valid"].loss == pytest.approx(scored.splits["valid"].nll.mean())
    assert member.versions == RunFolder(copy).versions() and member.versions is not None


def test_member_without_log_or_result(data, copy):
    (copy / "log.jsonl").unlink()
    member = member_of(copy, data, problem="diverged")
    assert (member.seconds, member.memory, member.tokens_per_second) == (None, None, None)
    assert (member.scores, member.nll, member.checkpoint, member.curve) == ({}, None, None, ())
    assert member.problem == "diverged"


def test_curves_are_per_word_with_gaps():
    pieces = replace(report(5, 1.0, 2.0), token_unit="bpe", nats_per_word=3.0)
    diverged = replace(report(9, 2.0, 2.0), loss=None, nats_per_word=None)
    points = learning_curve([pieces, validation(5, 1.0, float(np.exp(3.5))), diverged])
    assert [point.update for point in points] == [5, 9]
    assert points[0].loss == 3.0 and points[0].valid_loss == pytest.approx(3.5)
    assert points[1].loss is None and points[1].valid_loss is None
    part = [replace(validation(u, float(u), 40.0 - u), share=0.1) for u in (2, 4)]
    points = learning_curve(
        [*part, validation(4, 4.0, 30.0)]
    )  # only points on the same part of the valid set
    assert [np.exp(point.valid_loss or 0) for point in points] == pytest.approx([38.0, 36.0])


def test_time_and_curve_end_at_the_scored_checkpoint(data, copy):
    with_log(
        copy,
        report(1, 1.0, 5.0, speed=10.0, memory=5),
        report(3, 2.0, 4.0, speed=10.0, memory=7),
        report(9, 60.0, 3.0, speed=90.0, memory=9),  # training continued
    )
    scored = score_once(copy, DataFolder.open(data), ["test"], OPTIONS)
    assert scored.checkpoint == "update-00000003"
    member = member_of(copy, data, scored)
    assert (member.seconds, member.tokens_per_second, member.memory) == (2.0, 10.0, 7)
    assert [point.update for point in member.curve] == [1, 3]
    assert member_of(copy, data).seconds == 60.0
    elsewhere = member_of(copy, data, replace(scored, checkpoint="a-copy"))
    assert elsewhere.seconds == 60.0


def test_member_counts_updates_and_words_seen(data, copy):
    with_log(copy, replace(report(3, 2.0, 4.0), epoch=0.5))
    member = member_of(copy, data)
    words = DataFolder.open(data).split("train").words
    assert (member.updates, member.words_seen) == (3, round(0.5 * words))


def test_scores_are_not_reused_for_a_changed_token_file(copy, own_data):
    """Although data.json is unchanged."""
    losses(copy, own_data, "valid")
    path = own_data / "valid.tokens"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="valid.tokens: damaged"):
        losses(copy, own_data, "valid")
