"""Short runs for tests, in this process, in child processes or as a command."""

import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch

import zipflm
from zipflm.data.folder import DataFolder
from zipflm.presets.recipes import resolve
from zipflm.runs.checkpoint import Checkpoint, Contents
from zipflm.runs.folder import RunFolder
from zipflm.runs.records import Report, Validation
from zipflm.training import step
from zipflm.training.trainer import train

SMALL = [
    "decoder.dim=16",
    "decoder.ffn_dim=32",
    "decoder.num_layers=1",
    "decoder.num_heads=2",
    "input.dim=16",
    "output.dim=16",
    "batches.block=16",
    "batches.tokens=64",
    "batches.eval_block=16",
    "training.tokens_per_update=128",
    "training.schedule.warmup_updates=4",
    "training.report_every=5",
]
"""Settings of a model whose updates (two accumulated batches) take a few milliseconds."""


def config_of(data, *overrides, preset="tiny/ADP-T", recipe="paper", base=SMALL):
    return resolve(preset, recipe, [*base, *overrides], len(data.vocabulary))


def run(data, out, *overrides, recipe="paper", base=SMALL, **options):
    config = config_of(data, *overrides, recipe=recipe, base=base)
    return train(config, data, out, device="cpu", **options)


def weights(out: Path, update: int | None = None) -> dict[str, torch.Tensor]:
    read = read_contents(RunFolder(out).choose("newest" if update is None else update))
    return read.weights | read.optimizer


def read_contents(checkpoint: Checkpoint) -> Contents:
    """Verify and read all files of a checkpoint."""
    checkpoint.verify()
    return Contents(
        weights=checkpoint.stored_weights().read(),
        optimizer=checkpoint.stored_optimizer().read(),
        state=checkpoint.state(),
        config=checkpoint.config(),
        vocabulary=checkpoint.vocabulary(),
        codes=checkpoint.codes(),
        splitting=checkpoint.splitting(),
    )


def reports(out: Path) -> list[Report]:
    return [line for line in RunFolder(out).log() if isinstance(line, Report)]


def validations(out: Path) -> list[Validation]:
    return [line for line in RunFolder(out).log() if isinstance(line, Validation)]


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def assert_close(ours, theirs, **tolerance):
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], msg=name, **tolerance)


def command(*arguments, processes=1):
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    return [*start, "zipflm", *map(str, arguments)]


def environment():
    source = str(Path(zipflm.__file__).parents[1])
    return os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def train_command(data, out, *overrides, base=SMALL, processes=1):
    arguments = ["train", "tiny/ADP-T", "--data", data.path, "--out", out, "--device", "cpu"]
    return command(*arguments, *base, *overrides, processes=processes)


def call(arguments, **options):
    return subprocess.run(
        arguments, env=environment(), capture_output=True, text=True, timeout=120, **options
    )


class Killed(BaseException):
    pass


def disturb(monkeypatch, *, bad=(), stop=None, kill=None, interrupt=None):
    """Make updates bad, request a stop in one, kill the run before one, or send SIGINT in one.
    Updates are counted from 1 since the start or resumption."""
    original, calls = step.update, itertools.count(1)

    def disturbed(learner, batches, _=False):
        number = next(calls)
        if number == kill:
            raise Killed
        if number == interrupt:
            signal.raise_signal(signal.SIGINT)
        if number not in bad:
            return original(learner, batches, number == stop)
        weight = learner.model.decoder.layers[0].ffn_in.weight
        hook = weight.register_hook(lambda grad: grad * float("nan"))
        result = original(learner, batches, number == stop)
        hook.remove()
        return result

    monkeypatch.setattr(step, "update", disturbed)


def wait_for(condition, process, seconds=100):
    """Wait for a condition while a process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "the process ended or hangs"
        time.sleep(0.02)


def child(path, out, overrides):
    """A process that resumes a run."""
    return forked(_run_quietly, path, out, overrides)


def forked(target, *arguments):
    """A process that calls a function of a module, forked from one that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zipflm.studies.compare", "zipflm.cli", "torch._dynamo"])
    return context.Process(target=target, args=arguments)


def _run_quietly(path, out, overrides):
    torch.set_num_threads(1)  # rounds as in the test process
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            run(DataFolder.open(path), out, *overrides, resume=True)
        except ValueError as error:  # for the parent to read
            out.with_name(f"{out.name}.error").write_text(str(error))
            sys.exit(2)


def run_together(data, out, *overrides, processes=2):
    """A run in several processes, over gloo."""
    codes = run_apart(data, [out] * processes, *overrides)
    assert codes == [0] * processes


def run_apart(data, outs, *overrides):
    """The same with one run folder per process; returns the exit codes."""
    return in_processes(len(outs), _run_into, data.path, outs, overrides)


def _run_into(path, outs, overrides):
    _run_quietly(path, outs[int(os.environ["RANK"])], overrides)


def in_processes(count, target, *arguments):
    """Call a function in several processes with the environment of torchrun; returns exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        forked(_call_with, variables | {"RANK": rank, "LOCAL_RANK": rank}, target, arguments)
        for rank in map(str, range(count))
    ]
    for process in children:
        process.start()
    for process in children:
        process.join(100)
        process.kill()
        process.join()
    return [process.exitcode for process in children]


def _call_with(variables, target, arguments):
    os.environ.update(variables)
    target(*arguments)
