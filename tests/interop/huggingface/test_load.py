"""`zipflm.load` of exported folders and of models on the Hub."""

import huggingface_hub
import pytest

import zipflm

TEXT = "ba de ba fila\nsoro ba\n"


@pytest.mark.parametrize("label", ["ADP-T", "BPE", "CNN"])
def test_an_exported_folder_loads_as_its_run(label, runs, exported):
    ours, theirs = zipflm.load(runs[label]), zipflm.load(exported[label])
    assert theirs.score(TEXT).nll.tolist() == ours.score(TEXT).nll.tolist()
    assert theirs.encode(TEXT) == ours.encode(TEXT)
    assert str(exported[label]) in repr(theirs)


def test_an_exported_folder_is_one_model(exported):
    with pytest.raises(ValueError, match="--checkpoint best: .* is one model"):
        zipflm.load(exported["SM"], checkpoint="best")


def test_a_model_on_the_hub_is_downloaded(exported, monkeypatch):
    folders = {"somebody/model": str(exported["SM"])}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", folders.__getitem__)
    assert zipflm.load("somebody/model").perplexity(TEXT) > 1
    with pytest.raises(ValueError, match="somebody/none: not a folder here, and not found"):
        zipflm.load("somebody/none")


def test_a_folder_that_is_here_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ValueError, match="runs/none: no run with a checkpoint"):
        zipflm.load("runs/none")
