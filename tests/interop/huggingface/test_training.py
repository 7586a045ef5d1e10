import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loaded_models import loaded, on_disk
from safetensors.torch import load_file
from small_data import sentences
from transformers.utils import logging

import zipflm
from zipflm.interop.huggingface.exchange import export_run

SOURCE = Path(zipflm.__file__).parents[1]
SCRIPT = Path(__file__).with_name("ten_steps.py")

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "huggingface.md"


@pytest.fixture(scope="module")
def folder(word_data, tmp_path_factory):
    """A model without dropout, so that training is deterministic."""
    root = tmp_path_factory.mktemp("training")
    overrides = ["decoder.dropout=0", "output.tail_dropout=0"]
    export_run(on_disk(loaded(word_data, "ADP-T", overrides), root / "run"), root / "hf")
    (root / "text.txt").write_text("".join(f"{line}\n" for line in sentences(0)))
    return root


@pytest.fixture(scope="module")
def alone(folder):
    """Losses and weights after ten updates of two batches each, in this process."""
    spec = importlib.util.spec_from_file_location("ten_steps", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.disable_progress_bar()
    losses = module.train(folder / "hf", folder / "text.txt", folder / "alone", 2)
    logging.enable_progress_bar()
    return losses, load_file(folder / "alone" / "model.safetensors")


def test_trainer_reduces_the_loss(alone, folder):
    losses, weights = alone
    assert len(losses) == 10 and losses[-1] < 0.8 * losses[0]
    before = load_file(folder / "hf" / "model.safetensors")
    assert weights.keys() == before.keys()
    assert all(not torch.equal(weights[name], before[name]) for name in weights)


@pytest.mark.multi_process
@pytest.mark.slow
def test_accelerate_matches_one_process(alone, folder):
    # Uses the command in docs/guides/huggingface.md.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (shown,) = re.findall(r"^(.*) accelerate launch (.*) train.py$", PAGE.read_text(), re.MULTILINE)
    name, value = shown[0].split("=")
    script = [SCRIPT, folder / "hf", folder / "text.txt", folder / "both", 1]
    command = [sys.executable, "-m", "accelerate.commands.launch", *shown[1].split()]
    command += [f"--main_process_port={port}", *map(str, script)]
    environment = os.environ | {name: value, "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(SOURCE), "HF_HOME": str(folder / "home")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "both" / "processes.txt").read_text() == "2"
    weights = load_file(folder / "both" / "model.safetensors")
    for name, weight in alone[1].items():
        torch.testing.assert_close(
            weights[name],
            weight,
            atol=1e-4,
            rtol=1e-3,
            msg=lambda text, name=name: f"{name}: {text}",
        )
