"""Processes that see different things are refused before they start: exit status 2 in all of them,
said once, nothing written."""

import os
import shutil

import pytest
from small_data import sentences
from started_together import run_together
from training_runs import SMALL

from zipflm.data.prepare import Options, prepare
from zipflm.training import same_inputs

pytestmark = [pytest.mark.slow, pytest.mark.multi_process]


def train(data, outs, overrides):
    """`zipflm train` with what this process sees under these names."""
    import sys

    import zipflm.cli

    same_inputs._SLOW_TO_SHOW = 1.0  # for the sake of time
    rank = int(os.environ["RANK"])
    options = ["--data", data[rank], "--out", outs[rank], "--device", "cpu"]
    sys.argv = ["zipflm", "train", "tiny/ADP-T", *map(str, options), *SMALL, *overrides[rank]]
    zipflm.cli.main()


def refused(place, data, outs, overrides=None):
    """What the first of several processes says when all of them are refused."""
    count = len(data)
    ended = run_together(place / "said", count, train, data, outs, overrides or [()] * count)
    assert [each.status for each in ended] == [2] * count, ended
    assert all(each.stderr == "" for each in ended[1:])
    assert ended[0].stderr.startswith("zipflm: ") and ended[0].stderr.count("\n") == 1
    return ended[0].stderr


@pytest.fixture
def other_text(word_data, tmp_path):
    """A folder with the same vocabulary and another training text."""
    text = tmp_path / "other.txt"
    text.write_text("\n".join(sentences(5)) + "\n")
    options = Options(vocabulary=word_data.vocabulary)
    return prepare(tmp_path / "other", {"train": [text]}, options, processes=1).path


def test_another_training_text(word_data, other_text, tmp_path):
    out = tmp_path / "run"
    said = refused(tmp_path, [word_data.path, other_text], [out, out])
    assert "zipflm: the train text is " in said and "in process 1; give all processes" in said
    assert not out.exists()


def test_another_vocabulary(word_data, other_data, tmp_path):
    out = tmp_path / "run"
    said = refused(tmp_path, [word_data.path, other_data.path], [out, out])
    assert "zipflm: the vocabulary is " in said and "in process 1; give all processes" in said
    assert not out.exists()


def test_a_folder_that_one_machine_does_not_have(word_data, tmp_path):
    out = tmp_path / "run"
    said = refused(tmp_path, [word_data.path, tmp_path / "nowhere"], [out, out])
    assert f"zipflm: process 1: {tmp_path}/nowhere" in said
    assert not out.exists()


def test_other_settings(word_data, tmp_path):
    out, paths = tmp_path / "run", [word_data.path] * 2
    said = refused(tmp_path, paths, [out, out], [(), ["training.max_updates=7"]])
    assert "training.max_updates is " in said and "but 7 in process 1; give all" in said
    assert not out.exists()


def test_a_run_folder_that_is_not_shared(word_data, tmp_path):
    """Also one that is new in all of them."""
    outs = [tmp_path / "a", tmp_path / "b"]
    said = refused(tmp_path, [word_data.path] * 2, outs)
    assert f"process 1 does not see what process 0 writes to {outs[1]}; --out must be" in said
    assert not any(out.exists() for out in outs)


def test_copies_of_the_same_folder_will_do(word_data, tmp_path):
    copy, out = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(word_data.path, copy)
    short = ["training.max_updates=1"]
    ended = run_together(
        tmp_path / "said", 2, train, [word_data.path, copy], [out] * 2, [short] * 2
    )
    assert [each.status for each in ended] == [0, 0], ended


def test_a_number_of_processes_that_does_not_divide_an_update(word_data, tmp_path):
    out = tmp_path / "run"
    said = refused(tmp_path, [word_data.path] * 3, [out] * 3)
    assert "training.tokens_per_update=128: not a multiple of the 192 tokens" in said
    assert "use training.tokens_per_update=192" in said
    assert not out.exists()
