"""An imported checkpoint is a run folder like any other, there whole or not at all."""

import os

import pytest
import torch
from fairseq_checkpoints import DICT, NEWEST, OLDEST

from zipflm.config import PLAIN, Splitting
from zipflm.data.bpe import Codes
from zipflm.interop.fairseq import import_run, read_model
from zipflm.runs.folder import RunFolder
from zipflm.runs.load import load_run
from zipflm.runs.records import ImportedState


@pytest.mark.parametrize("checkpoint", [NEWEST, OLDEST], ids=["newest", "oldest"])
def test_the_run_holds_the_model_that_was_read(checkpoint, tmp_path):
    model = import_run(checkpoint, DICT, tmp_path / "run")
    expected = read_model(checkpoint, DICT)
    loaded = load_run(tmp_path / "run")
    assert loaded.config == model.config == expected.config
    assert loaded.vocabulary == expected.vocabulary and loaded.codes is None
    weights = loaded.model.state_dict()
    assert weights.keys() == expected.weights.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.weights.items())


def test_it_says_where_it_came_from_and_cannot_be_resumed(tmp_path):
    model = import_run(NEWEST, DICT, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    (checkpoint,) = run.checkpoints()
    assert checkpoint.state() == ImportedState(update=60, imported_from=str(NEWEST))
    assert checkpoint.update == model.updates == 60
    assert run.config() == model.config and run.versions() is None and run.log() == []
    checkpoint.verify()


def test_codes_make_it_a_model_of_sub_words_that_can_split_a_text(tmp_path):
    """Whatever its dictionary looks like: one of frequent words need not have a piece."""
    Codes([("t", "h"), ("th", "e</w>")]).save(tmp_path / "codes")
    model = import_run(NEWEST, DICT, tmp_path / "run", bpe_codes=tmp_path / "codes")
    assert model.config.batches.unit == "bpe"
    assert load_run(tmp_path / "run").codes.merges == [("t", "h"), ("th", "e</w>")]


def test_it_keeps_how_raw_text_is_to_be_split(tmp_path):
    splitting = Splitting("wikitext", lowercase=True)
    import_run(NEWEST, DICT, tmp_path / "run", splitting=splitting)
    assert load_run(tmp_path / "run").splitting == splitting
    import_run(NEWEST, DICT, tmp_path / "plain")
    assert load_run(tmp_path / "plain").splitting == PLAIN


def test_what_cannot_be_imported_leaves_nothing_behind(tmp_path):
    (tmp_path / "cut.pt").write_bytes(NEWEST.read_bytes()[:-100])
    (tmp_path / "no-codes").write_text("t h\n")
    before = sorted(os.listdir(tmp_path))
    for checkpoint, dictionary, codes, name in (
        (tmp_path / "cut.pt", DICT, None, "cut.pt"),
        (tmp_path / "absent.pt", DICT, None, "absent.pt"),
        (DICT, DICT, None, "dict.txt: not a checkpoint"),
        (NEWEST, tmp_path / "cut.pt", None, "cut.pt"),
        (NEWEST, DICT, tmp_path / "no-codes", "no-codes"),
    ):
        with pytest.raises((ValueError, OSError), match=name):
            import_run(checkpoint, dictionary, tmp_path / "new" / "run", bpe_codes=codes)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_that_is_taken_stays_as_it_was(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(FileExistsError, match="taken exists already; choose another --out"):
        import_run(NEWEST, DICT, tmp_path / "taken")
    assert os.listdir(tmp_path / "taken") == ["file"] and os.listdir(tmp_path) == ["taken"]
