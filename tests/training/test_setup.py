import re
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from training_runs import config_of, in_processes, run

from zipflm.data.prepare import prepare
from zipflm.distributed.processes import Process, started
from zipflm.presets import preset
from zipflm.runs.checkpoint import Checkpoint
from zipflm.runs.folder import RunFolder
from zipflm.storage import seal
from zipflm.training.checks import check_data, check_processes
from zipflm.training.setup import long_blocks_warning, newest_valid, overview
from zipflm.training.stream import accumulation, blocks_of, tokens_per_batch


def processes(number):
    return Process(0, number, torch.device("cpu"))


@st.composite
def configs(draw):
    block = draw(st.integers(1, 40))
    stage = draw(st.none() | st.integers(1, 40))
    config = preset("tiny", "ADP-T")
    tokens = draw(st.integers(max(block, stage or 1), 200))
    batches = replace(config.batches, block=block, tokens=tokens)
    training = replace(
        config.training,
        tokens_per_update=draw(st.integers(1, 2000)),
        stages=() if stage is None else ((0.5, stage),),
    )
    return replace(config, batches=batches, training=training)


@given(configs(), st.integers(1, 4))
def test_suggests_tokens_per_update_that_fit(config, world_size):
    process = processes(world_size)
    try:
        accumulation(config, process)
    except ValueError as error:
        wanted = int(re.search(r"use training.tokens_per_update=(\d+)", str(error))[1])
        config = replace(config, training=replace(config.training, tokens_per_update=wanted))
    for block in blocks_of(config):
        tokens = tokens_per_batch(config, block)
        assert tokens % block == 0 and config.batches.tokens - block < tokens
        number = accumulation(config, process, block)
        assert number * tokens * world_size == config.training.tokens_per_update


def test_warns_about_positions_without_training(word_data):
    for settings, is_warned in (
        (["batches.block=32"], True),
        (["batches.block=32", "training.stages=0.5:64"], False),
        (["batches.block=32", "batches.break_mode=sentence"], False),
        (["batches.block=32", "batches.eval_block=32"], False),
    ):
        warning = long_blocks_warning(config_of(word_data, "batches.eval_block=64", *settings))
        assert (warning is not None) == is_warned


def test_overview_adds_up_to_the_model(word_data):
    config = config_of(word_data, "training.stages=0.5:8")
    first, *rest = overview(config, processes(2))
    total = int(re.search(r"([\d,]+) parameters", first)[1].replace(",", ""))
    parts = [line for line in rest if line.startswith("  ")]
    assert sum(int(line.split()[-1].replace(",", "")) for line in parts) == total
    # Both block lengths fill 64 tokens, so there is one line.
    assert rest[len(parts) :] == ["128 tokens per update = 2 device(s) x 64 tokens x 1 accumulated"]


def test_rejects_a_text_of_pieces(tmp_path):
    (tmp_path / "train.txt").write_text("th@@ e c@@ at s@@ at\n" * 20)
    data = prepare(tmp_path / "d", {"train": [tmp_path / "train.txt"]})
    with pytest.raises(ValueError, match=r"60 of the 140 words .* end in @@: it is already split"):
        check_data(config_of(data), data)


@pytest.mark.parametrize(("split", "key"), [("train", "break_mode"), ("valid", "eval_break_mode")])
def test_rejects_a_text_on_one_line(tmp_path, split, key):
    texts = {"train": "a b\n" * 20, "valid": "a b\n"} | {split: "a b " * 10_000}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    data = prepare(tmp_path / "d", {name: [tmp_path / name] for name in texts})
    check_data(config_of(data, f"batches.{key}=none"), data)
    for mode in ("complete", "sentence"):
        message = rf"{split} split: has a line of 20,001 tokens.*; use batches.{key}=none"
        with pytest.raises(ValueError, match=message):
            check_data(config_of(data, f"batches.{key}={mode}"), data)


def test_sparse_gradients_need_one_process_or_gloo(word_data):
    config = config_of(word_data, "tie=none", "input.sparse=true")
    check_processes(config, word_data, Process(0, 1, torch.device("cuda")))
    with pytest.raises(ValueError, match="input.sparse=True: sparse gradients need gloo"):
        check_processes(config, word_data, Process(0, 2, torch.device("cuda")))


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


def _find_newest(path, out):
    torch.set_num_threads(1)
    messages = []
    with started("cpu") as process:
        found = newest_valid(RunFolder(path), process, messages.append)
        (out / str(process.rank)).write_text(f"{found.update} {' '.join(messages)}")


@pytest.mark.slow
@pytest.mark.multi_process
def test_all_processes_learn_of_a_damaged_checkpoint(copy, tmp_path):
    damage(copy, "weights.safetensors")
    assert in_processes(3, _find_newest, copy.path, tmp_path) == [0] * 3
    (text,) = {(tmp_path / str(rank)).read_text() for rank in range(3)}
    assert text.startswith("2 ") and "weights.safetensors" in text and "falling back" in text


def test_finds_the_newest_valid_checkpoint(copy, monkeypatch):
    messages, verify = [], Checkpoint.verify
    assert newest_valid(copy, processes(1), messages.append).update == 4 and not messages
    with monkeypatch.context() as patch:

        def fail_once(self):
            if self.update == 4:
                raise OSError(5, "Input/output error")
            verify(self)

        patch.setattr(Checkpoint, "verify", fail_once)
        assert newest_valid(copy, processes(1), messages.append).update == 2
        assert "Input/output error" in messages.pop()
    damage(copy, "vocabulary.txt")
    assert newest_valid(copy, processes(1), messages.append).update == 2 and len(messages) == 1
    damage(copy, "optimizer.safetensors", 2)
    with pytest.raises(ValueError, match="none of the 2 checkpoints can be read; restore one"):
        newest_valid(copy, processes(1), messages.append)


def test_rejects_weights_of_another_model(word_data, copy):
    path = copy.choose(4).path
    tensors = load_file(path / "weights.safetensors")
    tensors["decoder.layers.0.ffn_in.weight"] = torch.zeros(7, 16)
    save_file(tensors, path / "weights.safetensors")
    seal(path)
    with pytest.raises(ValueError, match=r"ffn_in.weight is \(7, 16\), but the model needs"):
        run(word_data, copy.path, "training.max_updates=5", resume=True)
