import pytest
import training_runs
from loaded_models import loaded

from zipflm.runs.folder import RunFolder
from zipflm.serving.models import load_models, make_served_model


@pytest.fixture(scope="module")
def runs(word_data, tmp_path_factory):
    """Two runs with the same name and two checkpoints each."""
    place = tmp_path_factory.mktemp("models")
    for parent in "ab":
        every = ["training.checkpoint_every=1"]
        training_runs.run(word_data, place / parent / "run", "training.max_updates=2", *every)
    return place


def test_runs_are_named_by_their_folders(runs):
    (name,) = load_models([str(runs / "a" / "run")], device="cpu")
    assert name == "run"


def test_models_from_the_hub_are_named_by_their_repository(runs, tmp_path, monkeypatch):
    exchange = pytest.importorskip("zipflm.interop.huggingface.exchange")
    snapshot = tmp_path / "snapshots" / "0a1b2c"
    exchange.export_run(str(runs / "a" / "run"), snapshot)
    monkeypatch.setattr(exchange, "download", {"us/model": snapshot}.__getitem__)
    assert list(load_models(["us/model"], device="cpu")) == ["model"]


def test_equal_names_are_made_unique(runs):
    checkpoints = RunFolder(runs / "a" / "run").checkpoints()
    paths = [str(checkpoint.path) for checkpoint in checkpoints]
    assert len(paths) == 2
    assert list(load_models(paths, device="cpu")) == paths
    paths = [str(runs / parent / "run") for parent in "ab"]
    assert list(load_models(paths, device="cpu")) == paths
    with pytest.raises(ValueError, match="given twice"):
        load_models(paths[:1] * 2, device="cpu")


@pytest.mark.parametrize("label", ["SM", "BPE-T", "CNN", "ADP"])
def test_model_entries(word_data, bpe_data, label):
    lm = loaded(bpe_data if label.startswith("BPE") else word_data, label)
    entry = make_served_model("it", lm).entry
    assert entry.id == "it" and entry.object == "model"
    metadata = entry.zipflm
    assert metadata["factorization"] == label and metadata["perplexity"] is None
    assert metadata["bands"][0]["first"] == 1 and metadata["bands"][0]["name"] == "head"
    assert metadata["bands"][-1]["last"] == metadata["words"] == lm.vocabulary.num_words
    edges = [(band["first"], band["last"]) for band in metadata["bands"]]
    assert all(before[1] + 1 == after[0] for before, after in zip(edges, edges[1:], strict=False))
