"""Where a run begins: processes that look at its checkpoints together find the same one."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_runs import SMALL, in_processes, run

from zipflm.runs.folder import RunFolder
from zipflm.storage import seal
from zipflm.training import distributed, setup
from zipflm.training.distributed import Process

ALONE = Process(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def trained(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    run(word_data, out, "training.max_updates=4", "training.checkpoint_every=2")
    return out


@pytest.fixture
def copy(trained, tmp_path):
    return RunFolder(shutil.copytree(trained, tmp_path / "copy"))


def damage(folder, name, update=4):
    path = folder.choose(update).path / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _look(path, out):
    torch.set_num_threads(1)
    said = []
    with distributed.started("cpu") as process:
        found = setup.newest_good(RunFolder(path), process, said.append)
        (out / str(process.rank)).write_text(f"{found.update} {' '.join(said)}")


@pytest.mark.slow
@pytest.mark.multi_process
@pytest.mark.parametrize("name", ["checksums.json", "weights.safetensors"])
def test_damage_that_one_process_finds_all_of_them_know(copy, tmp_path, name):
    """Each verifies another part of the files."""
    if name == "checksums.json":
        (copy.choose(4).path / name).unlink()
    else:
        damage(copy, name)
    assert in_processes(3, _look, copy.path, tmp_path) == [0] * 3
    told = {(tmp_path / str(rank)).read_text() for rank in range(3)}
    assert len(told) == 1
    (text,) = told
    assert text.startswith("2 ") and f"{name}" in text and "falling back" in text


def test_one_process_verifies_everything(copy):
    said = []
    assert setup.newest_good(copy, ALONE, said.append).update == 4 and not said
    damage(copy, "vocabulary.txt")
    assert setup.newest_good(copy, ALONE, said.append).update == 2 and len(said) == 1
    damage(copy, "optimizer.safetensors", 2)
    with pytest.raises(ValueError, match="none of its 2 checkpoints can be read; restore one"):
        setup.newest_good(copy, ALONE, said.append)


def test_weights_of_another_model_are_refused_with_their_name(word_data, copy):
    path = copy.choose(4).path
    tensors = load_file(path / "weights.safetensors")
    tensors["decoder.layers.0.ffn_in.weight"] = torch.zeros(7, 16)
    save_file(tensors, path / "weights.safetensors")
    seal(path)
    with pytest.raises(ValueError, match=r"ffn_in.weight is \(7, 16\), and the model's \(32, 16\)"):
        run(word_data, copy.path, *SMALL, "training.max_updates=5", resume=True)
