import json
import random
import shutil

import huggingface_hub
import pytest
import torch
from loaded_models import loaded, on_disk
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import zipflm
from zipflm.config import Splitting
from zipflm.data.prepare import Options, prepare
from zipflm.interop.huggingface.exchange import export_run, import_run
from zipflm.language.model import load
from zipflm.presets import FACTORIZATIONS
from zipflm.runs.load import load_run
from zipflm.runs.records import ImportedState


@pytest.fixture(autouse=True)
def _quietly():
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture
def folder(exported, tmp_path):
    """Copy an exported folder without checksums, as transformers saves it."""

    def copy(label):
        shutil.copytree(exported[label], tmp_path / "folder")
        (tmp_path / "folder" / "checksums.json").unlink()
        return tmp_path / "folder"

    return copy


def assert_same_run(ours, theirs):
    ours, theirs = load_run(ours), load_run(theirs)
    assert ours.weights_hash == theirs.weights_hash
    assert ours.config == theirs.config
    for name in ("vocabulary.txt", "bpe.codes", "splitting.json"):
        files = [run.checkpoint.path / name for run in (ours, theirs)]
        assert files[0].is_file() == files[1].is_file()
        assert not files[0].is_file() or files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("label", FACTORIZATIONS)
def test_export_and_import_are_exact(label, runs, exported, tmp_path):
    config = import_run(exported[label], tmp_path / "back")
    assert_same_run(tmp_path / "back", runs[label])
    back = load_run(tmp_path / "back")
    assert back.config == config
    state = ImportedState(update=7, imported_from=str(exported[label]))
    assert back.checkpoint.state() == state


def test_export_keeps_the_splitting(word_data, tmp_path):
    splitting = Splitting("wikitext", True)
    run = on_disk(loaded(word_data, "ADP-T"), tmp_path / "run", splitting)
    export_run(run, tmp_path / "hf")
    import_run(tmp_path / "hf", tmp_path / "back")
    assert_same_run(tmp_path / "back", run)
    assert load_run(tmp_path / "back").splitting == splitting


def test_exports_a_renamed_checkpoint(runs, tmp_path):
    shutil.copytree(load_run(runs["SM"]).checkpoint.path, tmp_path / "mine")
    export_run(tmp_path / "mine", tmp_path / "hf")
    assert import_run(tmp_path / "hf", tmp_path / "back") == load_run(runs["SM"]).config


def test_exports_runs_of_items(tmp_path):
    draw = random.Random(1)
    sessions = [" ".join(str(draw.randrange(40)) for _ in range(8)) for _ in range(30)]
    (tmp_path / "ids.txt").write_text("\n".join(sessions) + "\n")
    (tmp_path / "titles.txt").write_text("".join(f"song {number}\n" for number in range(40)))
    options = Options(ids=True, names=tmp_path / "titles.txt")
    data = prepare(tmp_path / "data", {"train": [tmp_path / "ids.txt"]}, options)
    run = on_disk(loaded(data, "ADP-T"), tmp_path / "run")
    export_run(run, tmp_path / "hf")
    import_run(tmp_path / "hf", tmp_path / "back")
    assert_same_run(tmp_path / "back", run)
    tokenizer, ids = AutoTokenizer.from_pretrained(tmp_path / "hf"), data.vocabulary.index
    assert tokenizer("song_3 song_17 99").input_ids == [2, ids["song_3"], ids["song_17"], 3]


def test_scores_match_the_run(runs, exported):
    for label in ("BPE", "CNN", "ADP-T"):
        lm = load(runs[label], device="cpu")
        model = AutoModelForCausalLM.from_pretrained(exported[label])
        tokenizer = AutoTokenizer.from_pretrained(exported[label])
        for text in ("ba de fila", "ba unheard-of\nde"):
            inputs = tokenizer(text + "\n", return_tensors="pt")
            loss = model(**inputs, labels=inputs.input_ids).loss.item()
            total = -loss * (inputs.input_ids.shape[1] - 1)
            assert total == pytest.approx(lm.score(text).logprob, abs=1e-4)


def test_lower_precision_becomes_float32(word_data, tmp_path):
    run = on_disk(loaded(word_data, "ADP-T"), tmp_path / "run")
    export_run(run, tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "low")
    AutoTokenizer.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "low")
    import_run(tmp_path / "low", tmp_path / "back")
    for name, weight in load_run(tmp_path / "back").model.state_dict().items():
        assert weight.dtype == torch.float32
        assert weight.equal(model.model.state_dict()[name].float())


def test_existing_folder_is_not_touched(runs, exported, tmp_path):
    (tmp_path / "mine").write_text("mine")
    for make in (
        lambda: export_run(runs["SM"], tmp_path / "mine"),
        lambda: import_run(exported["SM"], tmp_path / "mine"),
    ):
        with pytest.raises(FileExistsError, match="mine: already exists"):
            make()
    assert (tmp_path / "mine").read_text() == "mine"


def _cut(name):
    def damage(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return damage


def _json(name, change):
    def damage(folder):
        values = json.loads((folder / name).read_text())
        change(values)
        (folder / name).write_text(json.dumps(values))

    return damage


def _weights(change):
    def damage(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return damage


INDEX = "model.safetensors.index.json"
TABLE = "model.input.table"

DAMAGES = [
    ("SM", lambda f: (f / "config.json").unlink(), "config.json: missing"),
    ("SM", lambda f: (f / "model.safetensors").unlink(), "no file named model.safetensors"),
    ("SM", lambda f: (f / "vocabulary.txt").unlink(), "vocabulary.txt: missing; use a folder"),
    ("SM", _cut("config.json"), "config.json: not JSON"),
    ("SM", _cut("model.safetensors"), "weights are truncated or damaged"),
    ("SM", _cut("vocabulary.txt"), "vocabulary.txt"),
    ("BPE", _cut("bpe.codes"), "bpe.codes .*: missing, damaged or from another run"),
    ("SM", _json("config.json", lambda c: c.update(model_type="gpt2")), "model_type='gpt2'"),
    ("SM", _json("config.json", lambda c: c["zipflm"].update(tie="all")), "zipflm.tie='all'"),
    ("SM", _json("config.json", lambda c: c["zipflm"].update(vocab_size=9)), "zipflm implies 9"),
    ("SM", _weights(lambda w: w.pop(TABLE)), "missing keys: .*input.table"),
    ("SM", _weights(lambda w: w.update({"model.x": torch.ones(1)})), "unexpected keys: model.x"),
    ("SM", _weights(lambda w: w.update({TABLE: w[TABLE][:, 1:].clone()})), "mismatched keys"),
    ("ADP-T", lambda f: min(f.glob("model-*.safetensors")).unlink(), "model-00001"),
    ("ADP-T", _cut(INDEX), "folder: .*"),
]


@pytest.mark.parametrize(("label", "damage", "message"), DAMAGES)
def test_damaged_folder_leaves_nothing(label, damage, message, folder, tmp_path):
    path = folder(label)
    damage(path)
    with pytest.raises(ValueError, match=message):
        import_run(path, tmp_path / "out" / "run")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "vocabulary.txt", "README.md"])
def test_exported_folder_detects_changes(name, exported, tmp_path):
    shutil.copytree(exported["SM"], tmp_path / "folder")
    path = tmp_path / "folder" / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=f"{name}: damaged; .*if the change was intended"):
        import_run(tmp_path / "folder", tmp_path / "run")
    path.unlink()
    with pytest.raises(ValueError, match=f"{name}: missing, but listed in checksums.json"):
        import_run(tmp_path / "folder", tmp_path / "run")


TEXT = "ba de ba fila\nsoro ba\n"


@pytest.mark.parametrize("label", ["ADP-T", "BPE", "CNN"])
def test_load_exported_folder(label, runs, exported):
    ours, theirs = zipflm.load(runs[label]), zipflm.load(exported[label])
    assert theirs.score(TEXT).nll.tolist() == ours.score(TEXT).nll.tolist()
    assert theirs.encode(TEXT) == ours.encode(TEXT)
    assert str(exported[label]) in repr(theirs)


def test_names_a_damaged_config(folder):
    path = folder("SM")
    (path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="folder/config.json: damaged .* not JSON"):
        zipflm.load(path)


def test_exported_folder_has_no_checkpoints(exported):
    with pytest.raises(ValueError, match="checkpoint=best: .* has no checkpoints"):
        zipflm.load(exported["SM"], checkpoint="best")


def test_downloads_from_the_hub(exported, tmp_path, monkeypatch):
    folders = {"user/model": str(exported["SM"]), "user/gpt": str(tmp_path)}
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    downloaded = []
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda name, file: f"{folders[name]}/{file}"
    )
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name: downloaded.append(name) or folders[name]
    )
    assert zipflm.load("user/model").perplexity(TEXT) > 1
    with pytest.raises(ValueError, match="user/gpt: .*model_type='gpt2'"):
        zipflm.load("user/gpt")
    assert downloaded == ["user/model"]
    with pytest.raises(ValueError, match="user/none: not a local folder, and cannot be downloaded"):
        zipflm.load("user/none")


def test_local_folder_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ValueError, match="runs/none: no such folder"):
        zipflm.load("runs/none")
