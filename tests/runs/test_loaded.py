import json
import shutil

import pytest
import torch
from fairseq_checkpoints import DICT
from safetensors.torch import load_file, save_file
from training_runs import config_of

from zipflm.data.vocabulary import Vocabulary
from zipflm.runs.load import load_run
from zipflm.storage import file_hash
from zipflm.training.trainer import train


@pytest.fixture
def copy(imported_run, tmp_path):
    """A copy that a test can damage."""
    return shutil.copytree(imported_run, tmp_path / "copy")


def test_loads_an_imported_run(imported_run):
    loaded = load_run(imported_run)
    model = loaded.model
    assert loaded.config.name == "fairseq/transformer_lm_wiki103"
    assert loaded.vocabulary == Vocabulary.load(DICT)
    assert not model.training
    assert model.config.num_params() == sum(p.numel() for p in model.parameters())
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("tiny/ADP-T", ["output.tail_dropout=0.2", "output.head_projection=true"]),
        ("tiny/CNN", ["input.markers=true", "decoder.norm_position=after"]),
    ],
)
def test_loads_all_model_options(preset, options, word_data, tmp_path):
    updates = ["training.max_updates=1", "training.schedule.warmup_updates=1"]
    config = config_of(word_data, *options, *updates, preset=preset, base=[])
    assert config != config_of(word_data, *updates, preset=preset, base=[])
    train(config, word_data, tmp_path / "run", device="cpu")
    loaded = load_run(tmp_path / "run")
    assert loaded.config == config
    assert config.num_params() == sum(p.numel() for p in loaded.model.parameters())


def test_chooses_a_checkpoint(copy):
    old = copy / "checkpoints" / "update-00000060"
    shutil.copytree(old, copy / "checkpoints" / "update-00000200")
    shutil.copytree(old, copy / "checkpoints" / ".update-00000300.17")
    assert load_run(copy).checkpoint.name == "update-00000200"
    assert load_run(copy, 60).checkpoint.name == load_run(old).checkpoint.name == old.name
    assert load_run(old).folder.path == load_run(copy).folder.path == copy
    with pytest.raises(ValueError, match="checkpoint=70: .*: 200, 60"):
        load_run(copy, 70)
    with pytest.raises(ValueError, match="no checkpoint in .* has a validation loss"):
        load_run(copy, "best")
    with pytest.raises(ValueError, match="is already a checkpoint"):
        load_run(old, "newest")


def test_rejects_damaged_or_missing_weights(copy):
    path = copy / "checkpoints" / "update-00000060" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="weights.safetensors: damaged"):
        load_run(copy)
    update_checksum(path)
    with pytest.raises(ValueError, match="weights.safetensors: truncated or damaged"):
        load_run(copy)
    path.unlink()
    with pytest.raises(ValueError, match="weights.safetensors: missing"):
        load_run(copy)


def update_checksum(path):
    sums = json.loads((path.parent / "checksums.json").read_text())
    sums[path.name] = file_hash(path)
    (path.parent / "checksums.json").write_text(json.dumps(sums))


def test_rejects_weights_of_another_model(copy):
    folder = copy / "checkpoints" / "update-00000060"
    weights = load_file(folder / "weights.safetensors")
    weights["decoder.layers.0.ffn_in.bias"] = torch.zeros(3)
    save_file(weights, folder / "weights.safetensors")
    update_checksum(folder / "weights.safetensors")
    with pytest.raises(ValueError, match="weights do not match the config: .*ffn_in.bias") as error:
        load_run(copy)
    assert "\n" not in str(error.value)


def test_rejects_folders_that_are_not_runs(tmp_path):
    with pytest.raises(ValueError, match="no checkpoints found"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match="absent: no such folder"):
        load_run(tmp_path / "absent")
