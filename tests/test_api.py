"""The Python API: `zipflm.prepare`, `train`, `evaluate`, `compare`."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import training_runs
from small_data import sentences
from training_runs import SMALL, assert_same, weights

import zipflm
import zipflm.cli
from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.evaluation.evaluate import evaluate as score
from zipflm.runs.folder import RunFolder

EXAMPLE = Path(__file__).parents[1] / "examples" / "tour.py"
SHORT = [*SMALL, "training.max_updates=6"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    for name, seed in (("train", 0), ("valid", 1), ("test", 2), ("other", 3)):
        (root / f"{name}.txt").write_text("\n".join(sentences(seed)) + "\n")
    return root


@pytest.fixture(scope="module")
def data(texts):
    train, valid, test = (texts / f"{name}.txt" for name in ("train", "valid", "test"))
    return zipflm.prepare(train, valid=valid, test=[test], min_count=1, out=texts / "data")


@pytest.fixture(scope="module")
def run(data, texts):
    return zipflm.train("tiny/ADP-T", SHORT, data=data, out=texts / "run", device="cpu")


@pytest.fixture(scope="module")
def other(run, texts):
    """Other text, prepared with the vocabulary of the run."""
    files = {"valid": str(texts / "valid.txt"), "vocabulary": run}
    return zipflm.prepare(str(texts / "other.txt"), **files, out=str(texts / "other"))


def test_import_does_not_load_torch():
    code = "import sys, zipflm; zipflm.prepare, zipflm.train; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_train_and_evaluate_match_the_trainer(data, run, texts, tmp_path):
    out = tmp_path / "run"
    training_runs.run(data, out, *SHORT)
    assert_same(weights(out), weights(run.path))
    found = zipflm.evaluate(run, data=data, split="valid", device="cpu")
    options = ScoringOptions(device="cpu")
    expected = score(out, data=data, split="valid", options=options).scores
    assert found.perplexity == expected.perplexity
    assert zipflm.evaluate(str(out), data=str(data.path)).scores.protocol.words > 0
    assert zipflm.evaluate(run, text=texts / "valid.txt", checkpoint="newest").perplexity > 1


def test_overrides_are_a_list_or_a_dict(data, run, tmp_path):
    changes = dict(change.split("=") for change in SMALL) | {"training.max_updates": np.int64(6)}
    again = zipflm.train("tiny/ADP-T", changes, data=str(data.path), out=tmp_path / "run")
    assert again.config() == run.config()
    with pytest.raises(ValueError, match="overrides=a=1: must be a list or a dict"):
        zipflm.train("tiny/ADP-T", "a=1", data=data, out=tmp_path / "none")


def test_rejects_the_data_folder_as_output(data):
    with pytest.raises(ValueError, match="this is a data folder; choose another folder"):
        zipflm.train("tiny/ADP-T", SMALL, data=data, out=data.path)


def test_compare_returns_the_study(data, tmp_path):
    finished = zipflm.compare(
        SHORT, data=data, preset="tiny", out=tmp_path, factorizations=["ADP-T"], device="cpu"
    )
    assert [row.label for row in finished.study.rows] == ["ADP-T"]
    assert finished.page.is_file()
    assert not finished.failures
    with pytest.raises(ValueError, match="factorizations=SM: must be a list"):
        zipflm.compare(data=data, preset="tiny", out=tmp_path, factorizations="SM")
    with pytest.raises(ValueError, match="runs: empty"):
        zipflm.report([], data=data, out=tmp_path / "none")


def test_fine_tunes_on_other_text(run, other, tmp_path):
    adapted = zipflm.train(from_run=run, data=other, out=tmp_path / "adapted", device="cpu")
    assert adapted.config() == run.config()
    before, after = (zipflm.evaluate(each, data=other, split="train") for each in (run, adapted))
    assert after.perplexity < before.perplexity
    origin = adapted.versions().origin
    assert origin.run == str(run.path.resolve())
    assert origin.checkpoint == "update-00000006"
    assert origin.weights == run.choose("newest").weights_hash
    assert adapted.versions().data == str(other.path.resolve())


@pytest.mark.parametrize("override", ["training.max_updates=2", "@settings.cfg"])
def test_train_command_fine_tunes_on_other_text(run, other, tmp_path, monkeypatch, override):
    (tmp_path / "settings.cfg").write_text("training.max_updates=2\n")
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--from", run.path, "--data", other.path, "--out", tmp_path / "adapted"]
    arguments += [override, "--device", "cpu"]
    monkeypatch.setattr("sys.argv", ["zipflm", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        zipflm.cli.main()
    adapted = RunFolder(tmp_path / "adapted")
    assert not exit.value.code and adapted.config().training.max_updates == 2
    assert adapted.versions().origin.run == str(run.path.resolve())


def test_fine_tuning_starts_from_the_weights(run, other, tmp_path):
    zipflm.train(
        overrides={"training.max_updates": 1, "training.schedule.warmup_updates": 1000},
        from_run=run.path,
        data=other.path,
        out=tmp_path / "near",
    )
    old, new = weights(run.path), weights(tmp_path / "near")
    names = zipflm.load(run).model.state_dict()
    for name in names:
        torch.testing.assert_close(new[name], old[name], atol=0.01, rtol=0)


def test_fine_tuning_can_be_resumed(run, other, tmp_path):
    start = {"from_run": run, "data": other, "device": "cpu"}
    whole = zipflm.train(**start, out=tmp_path / "whole")
    part = RunFolder(tmp_path / "part")
    zipflm.train(**start, out=part, overrides={"training.max_updates": 3})
    zipflm.train(**start, out=part, overrides={"training.max_updates": 6}, resume=True)
    assert part.versions().origin == whole.versions().origin
    assert_same(weights(part.path), weights(whole.path))


def test_rejects_data_with_another_vocabulary(run, texts, tmp_path):
    data = zipflm.prepare(texts / "other.txt", min_count=1, max_size=20, out=tmp_path / "data")
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="prepare the text again, with --vocabulary") as error:
        zipflm.train(from_run=run, data=data, out=out)
    assert not out.exists()
    checkpoint = str(error.value).split()[-1]
    right = zipflm.prepare(texts / "other.txt", vocabulary=checkpoint, out=tmp_path / "right")
    zipflm.train(None, ["training.max_updates=1"], from_run=run, data=right, out=out, device="cpu")


def test_rejects_weights_of_another_model(run, other, tmp_path):
    with pytest.raises(ValueError, match="use a checkpoint of the same model"):
        zipflm.train(None, ["decoder.ffn_dim=8"], from_run=run, data=other, out=tmp_path / "run")
    with pytest.raises(
        ValueError, match="tiny/SM: leave it out, because model and recipe come from"
    ):
        zipflm.train("tiny/SM", from_run=run, data=other, out=tmp_path / "run")
    lengths = {"training.epochs": 1, "training.max_updates": 2}
    with pytest.raises(ValueError, match=r"epochs=1.0: cannot be combined with training.max_upd"):
        zipflm.train(None, lengths, from_run=run, data=other, out=tmp_path / "run")
    with pytest.raises(ValueError, match="preset: missing; name one"):
        zipflm.train(data=other, out=tmp_path / "run")


SENTENCES = """the cat sat on the mat
the dog sat on the rug
the cat ran after the mouse
the dog ran after the cat
"""


def test_example_uses_only_public_names(tmp_path, capsys, monkeypatch):
    (tmp_path / "train.txt").write_text(SENTENCES * 50)
    (tmp_path / "valid.txt").write_text(SENTENCES)
    paths = [str(tmp_path / name) for name in ("train.txt", "valid.txt", "out")]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *paths])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "perplexity " in printed
    assert "recognized: the cat sat on the mat\n" in printed
    assert printed.count("generated: the dog") == 2
    source = EXAMPLE.read_text()
    assert set(re.findall(r"zipflm\.(\w+)", source)) <= set(zipflm.__all__)
    assert len(source.splitlines()) <= 40


@pytest.mark.parametrize("name", ["factorizations", "decoders", "memory"])
def test_compare_rejects_strings_for_lists(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name}=lstm: must be a list"):
        zipflm.compare(data=tmp_path, preset="toy", out=tmp_path / "study", **{name: "lstm"})


def test_vocabulary_of_the_bundled_model(texts, tmp_path):
    files = {"valid": texts / "valid.txt", "words": "words"}
    data = zipflm.prepare(**files, vocabulary="state-of-the-union", out=tmp_path / "data")
    assert data.vocabulary.hash == zipflm.load("state-of-the-union").vocabulary.hash
    with pytest.raises(OSError, match="nowhere"):
        zipflm.prepare(**files, vocabulary="nowhere", out=tmp_path / "none")
