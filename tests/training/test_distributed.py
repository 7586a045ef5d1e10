"""Several processes start, fail and stop together."""

import json
import signal
import time

import pytest
import torch
from small_data import sentences
from started_together import run_together, together
from training_runs import SMALL, call, train_command

from tests.training import failing_run
from zipflm.data.prepare import Options, prepare
from zipflm.distributed.failures import describe_error
from zipflm.distributed.processes import Process, started
from zipflm.runs.folder import RunFolder

SHORT = [*SMALL, "training.max_updates=4", "training.report_every=1", "training.checkpoint_every=2"]
ENDLESS = [*SMALL, "training.max_updates=100000", "training.report_every=1"]
multi_process = pytest.mark.multi_process


def train(data, out, *settings):
    options = ["--data", data, "--out", out, "--device", "cpu", "--resume-if-any"]
    return [str(argument) for argument in ("train", "tiny/ADP-T", *options, *settings)]


def compare(data, out, *settings):
    options = ["--data", data, "--preset", "tiny", "--out", out, "--device", "cpu"]
    return [*map(str, ["compare", *options, "--factorizations", "ADP,ADP-T", *SHORT, *settings])]


def run(place, rank, where, fault, arguments):
    """Run two processes with a fault in the process `rank`."""
    return run_together(place, 2, failing_run.run, rank, where, fault, *arguments)


def errors(ended):
    lines = [line for process in ended for line in process.stderr.splitlines()]
    return [line for line in lines if line.startswith("zipflm: ")]


def statuses(ended):
    return [process.status for process in ended]


def test_single_process():
    with started("cpu") as process:
        assert process == Process(0, 1, torch.device("cpu"))
        assert process.all_reduce(torch.tensor(3)) == 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n lines"), "two lines"),
        (OSError(28, "No space"), "the disk is full; "),
        (RuntimeError("shapes"), "RuntimeError: shapes"),
        (KeyError(), "KeyError"),
    ],
)
def test_describes_errors_on_one_line(error, text):
    assert describe_error(error).startswith(text) and "\n" not in describe_error(error)


@multi_process
@pytest.mark.parametrize(
    ("where", "fault", "status", "message"),
    [
        ("train", "kill", 1, "process 1 ended without a message"),
        pytest.param(
            *("train", "error", 2, "process 1: a fault in process 1"), marks=pytest.mark.slow
        ),
        pytest.param(*("train", "bug", 1, "process 1: KeyError: "), marks=pytest.mark.slow),
        pytest.param(
            *("read", "hang", 1, "process 0: lost the connection to process 1 (Timed out"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failing_process_ends_all_and_the_run_can_be_resumed(
    word_data, tmp_path, where, fault, status, message
):
    arguments = train(word_data.path, tmp_path / "run", "--stall-seconds=3", *SHORT)
    start = time.monotonic()
    ended = run(tmp_path / "first", "1", where, fault, arguments)
    assert time.monotonic() - start < 60
    assert ended[0].status == status and ended[1].status, ended
    (error,) = errors(ended)
    assert error.startswith(f"zipflm: {message}")
    assert ("Traceback" in ended[1].stderr) == (fault == "bug")
    assert "Traceback" not in ended[0].stderr
    again = run(tmp_path / "again", "none", where, fault, arguments)
    assert statuses(again) == [0, 0], again
    # A killed process can leave the checkpoint of update 2 unfinished.
    assert fault == "kill" or "resuming after update 2" in again[0].stdout


@multi_process
@pytest.mark.slow
def test_a_study_ends_if_a_process_fails_and_can_be_continued(word_data, tmp_path):
    arguments = compare(word_data.path, tmp_path / "study")
    ended = run(tmp_path / "first", "1", "train", "error", arguments)
    assert all(statuses(ended)) and errors(ended) == ["zipflm: process 1: a fault in process 1"]
    assert "[2/2]" not in ended[0].stdout  # it does not continue with the next member
    again = run(tmp_path / "again", "none", "train", "error", arguments)
    assert statuses(again) == [0, 0], again
    rows = json.loads((tmp_path / "study" / "table.json").read_text())["rows"]
    assert [row["problem"] for row in rows] == ["", ""]


@multi_process
@pytest.mark.slow
def test_a_study_continues_after_a_failure_in_scoring(word_data, tmp_path):
    arguments = compare(word_data.path, tmp_path / "study")
    ended = run(tmp_path / "first", "0", "score", "error", arguments)
    assert statuses(ended) == [1, 1]
    problem = "ADP: process 0: a fault in process 0"
    assert errors(ended) == [f"zipflm: failed: {problem}"]
    assert "[1/2] ADP: failed" in ended[0].stdout and "[2/2] ADP-T: done" in ended[0].stdout


@multi_process
@pytest.mark.slow
def test_divergence_is_the_same_error_in_all_processes(word_data, tmp_path):
    hot = [f"training.{n}=1e18" for n in ("schedule.max_lr", "optimizer.weight_decay")]
    hot += ["training.schedule.warmup_from=1e18", "training.max_bad_updates=1"]
    arguments = compare(word_data.path, tmp_path / "study", *hot)
    ended = run(tmp_path / "first", "none", "train", "", arguments)
    assert statuses(ended) == [1, 1]
    assert "[1/2] ADP: failed" in ended[0].stdout and "[2/2] ADP-T: failed" in ended[0].stdout
    (error,) = errors(ended)
    assert "ADP: training.max_bad_updates=1" in error


@multi_process
def test_sigterm_to_one_process_saves_and_stops_all(word_data, tmp_path):
    """torchrun forwards the signal, so all processes get another one while they save."""
    out = tmp_path / "run"
    command = train(word_data.path, out, *ENDLESS)
    with together(tmp_path / "out", 2, failing_run.run, "0", "save", "slow", *command) as running:
        running.wait_for(lambda: "update 3/" in running.stdout())
        running.signal(1, signal.SIGTERM)
        time.sleep(0.7)
        for rank in (0, 1):
            running.signal(rank, signal.SIGTERM)
        ended = running.wait()
    assert statuses(ended) == [130, 130], ended
    assert "stopped after update" in ended[0].stdout
    assert len(RunFolder(out).checkpoints()) == 1


def other_text(data, folder):
    """A folder with the same vocabulary and another training text."""
    text = folder / "other.txt"
    text.write_text("\n".join(sentences(5)) + "\n")
    options = Options(vocabulary=data.vocabulary)
    return prepare(folder / "other", {"train": [text]}, options, processes=1).path


@multi_process
@pytest.mark.parametrize(
    "differs",
    ["settings", *(pytest.param(each, marks=pytest.mark.slow) for each in ("text", "data", "out"))],
)
def test_rejects_processes_with_different_inputs(word_data, tmp_path, differs):
    outs = [tmp_path / "a"] * 2
    paths, settings = [word_data.path] * 2, [[], []]
    if differs == "settings":
        settings, message = [[], ["training.max_updates=7"]], "training.max_updates is "
    elif differs == "text":
        paths, message = [word_data.path, other_text(word_data, tmp_path)], "the train text is "
    elif differs == "data":
        paths[1] = tmp_path / "nowhere"
        message = f"process 1: {paths[1]}"
    else:
        outs[1] = tmp_path / "b"
        message = f"process 1: {outs[1]}: files of process 0"
    commands = [
        train(path, out, *SHORT, *own) for path, out, own in zip(paths, outs, settings, strict=True)
    ]
    ended = run_together(tmp_path / "output", 2, failing_run.run_each, commands)
    assert statuses(ended) == [2, 2], ended
    (error,) = errors(ended)
    assert error.startswith(f"zipflm: {message}")
    assert not any(out.exists() for out in outs)


@multi_process
def test_reports_a_process_that_does_not_start(word_data, tmp_path, monkeypatch):
    monkeypatch.setattr("started_together.forked", only_first(monkeypatch))
    command = train(word_data.path, tmp_path / "run", "--stall-seconds=2", *SHORT)
    (ended,) = run_together(tmp_path / "output", 1, failing_run.run, "none", "", "", *command)
    assert ended.status == 2
    assert ended.stderr == "zipflm: process 1 did not start within 2 s\n"


def only_first(monkeypatch):
    from started_together import forked

    def start(target, place, *arguments):
        return forked(target, place | {"WORLD_SIZE": "2"}, *arguments)

    return start


@multi_process
@pytest.mark.slow
def test_trains_under_torchrun(word_data, tmp_path):
    out = tmp_path / "run"
    done = call(train_command(word_data, out, "training.max_updates=2", processes=2))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 device(s) x 64 tokens x 1 accumulated") == 1
    assert RunFolder(out).choose("newest").state().world_size == 2
