"""Two trainings never write into one run folder at once."""

import re
import signal
import subprocess
import time

import pytest
from training_runs import (
    assert_same,
    environment,
    reports,
    run,
    train_command,
    weights,
)

from zipflm.runs.folder import RunFolder

SHORT = ["training.max_updates=2"]
LONG = ["training.max_updates=100000", "training.checkpoint_every=20", "training.report_every=10"]


def wait_for(condition, process, seconds=100):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, "it ended or hangs"
        time.sleep(0.02)


@pytest.mark.slow
def test_the_second_of_two_trainings_is_refused_and_the_first_one_goes_on(word_data, tmp_path):
    out = tmp_path / "run"
    command = train_command(word_data, out, *LONG)
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as first:
        try:
            wait_for(lambda: RunFolder(out).checkpoints(), first)
            config = (out / "config.json").read_bytes()
            with pytest.raises(ValueError) as refused:  # which the command line says
                run(word_data, out, *SHORT, resume=True)
            assert re.fullmatch(
                rf"{out}: in use by process {first.pid} on \S+, since \S+ \S+; wait until it "
                "finishes, or choose another folder",
                str(refused.value),
            )
            assert (out / "config.json").read_bytes() == config
            seen = len(reports(out))
            wait_for(lambda: len(reports(out)) > seen, first)
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 130  # it had more to do
        finally:
            first.kill()  # or a failure would wait for its end
    updates = [report.update for report in reports(out)]
    assert updates == sorted(set(updates))
    for checkpoint in RunFolder(out).checkpoints():
        checkpoint.verify()
    assert not list(out.rglob(".*"))


def test_what_a_killed_training_left_is_removed_by_the_next(word_data, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    length = ["training.max_updates=4", "training.checkpoint_every=2"]
    run(word_data, whole, *length)
    run(word_data, out, *length, "training.max_updates=2")
    saved = out / "checkpoints"
    (saved / ".update-00000002.unfinished-abcdefgh").mkdir()
    (saved / ".update-00000001").mkdir()  # it was being removed
    (saved / ".damaged-update-00000001").mkdir()  # set aside for the user
    for left in (".lock", ".unfinished-config.json", "checkpoints/.update-00000003.lock"):
        (out / left).write_text("{")
    run(word_data, out, *length, resume=True)
    assert {path.name for path in out.rglob(".*")} == {".damaged-update-00000001"}
    assert_same(weights(out), weights(whole))


def test_a_failed_start_leaves_no_folder_and_none_of_its_parents(word_data, tmp_path):
    with pytest.raises(ValueError, match="tokens_per_update"):
        run(word_data, tmp_path / "new" / "run", "batches.tokens=96")
    assert not (tmp_path / "new").exists()
