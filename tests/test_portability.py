"""Basic commands work without Linux features such as `sched_getaffinity` and /proc."""

import subprocess
import sys

import pytest
from training_runs import environment

WITHOUT_LINUX = """
import builtins, os
# Libraries look up system functions when they are imported.
import matplotlib.figure, numpy, rich.progress, safetensors.torch, tokenizers, torch, typer
import torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor, torch.utils.data
import multiprocessing, concurrent.futures.process

del os.sched_getaffinity
plain_open = builtins.open
def open_without_proc(file, *rest, **options):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", file)
    return plain_open(file, *rest, **options)
builtins.open = open_without_proc
torch.set_num_threads(1)

from zipflm.cli import app

def zipflm(*arguments):
    try:
        app(list(map(str, arguments)))
    except SystemExit as end:
        assert not end.code, (arguments, end.code)

with open("text.txt", "w") as file:
    file.write("the cat sat on the mat\\na dog sat on a log\\n" * 60)
zipflm("prepare", "text.txt", "--out", "data", "--processes", "1")
run = ["train", "tiny/ADP-T", "--data", "data", "--out", "run", "--device", "cpu"]
zipflm(*run, "training.max_updates=2")
zipflm(*run, "training.max_updates=3", "--resume")
zipflm("evaluate", "run", "--text", "text.txt")
"""


@pytest.mark.slow
def test_basic_commands_work_without_linux_features(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LINUX],
        cwd=tmp_path,
        env=environment() | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "update 3/3" in done.stdout and "perplexity" in done.stdout
