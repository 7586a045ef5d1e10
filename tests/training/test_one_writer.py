import re
import signal
import subprocess

import pytest
from training_runs import (
    assert_same,
    environment,
    reports,
    run,
    train_command,
    wait_for,
    weights,
)

from zipflm.runs.folder import RunFolder

SHORT = ["training.max_updates=2"]
LONG = ["training.max_updates=100000", "training.checkpoint_every=20", "training.report_every=10"]


@pytest.mark.slow
def test_rejects_a_second_training_in_the_same_folder(word_data, tmp_path):
    out = tmp_path / "run"
    command = train_command(word_data, out, *LONG)
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as first:
        try:
            wait_for(lambda: RunFolder(out).checkpoints(), first)
            config = (out / "config.json").read_bytes()
            with pytest.raises(ValueError) as error:
                run(word_data, out, *SHORT, resume=True)
            assert re.fullmatch(
                rf"{out}: in use by process {first.pid} on \S+, since \S+ \S+; wait until it "
                "finishes, or choose another folder",
                str(error.value),
            )
            assert (out / "config.json").read_bytes() == config
            seen = len(reports(out))
            wait_for(lambda: len(reports(out)) > seen, first)
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 130  # it was not finished
        finally:
            first.kill()
    updates = [report.update for report in reports(out)]
    assert updates == sorted(set(updates))
    for checkpoint in RunFolder(out).checkpoints():
        checkpoint.verify()
    assert not list(out.rglob(".*"))


def test_removes_files_of_a_killed_training(word_data, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    length = ["training.max_updates=4", "training.checkpoint_every=2"]
    run(word_data, whole, *length)
    run(word_data, out, *length, "training.max_updates=2")
    saved = out / "checkpoints"
    (saved / ".update-00000002.unfinished-abcdefgh").mkdir()
    (saved / ".update-00000001").mkdir()  # half removed
    (saved / ".damaged-update-00000001").mkdir()  # kept for the user
    for left in (".lock", ".unfinished-config.json", "checkpoints/.update-00000003.lock"):
        (out / left).write_text("{")
    run(word_data, out, *length, resume=True)
    assert {path.name for path in out.rglob(".*")} == {".damaged-update-00000001"}
    assert_same(weights(out), weights(whole))


def test_a_failed_start_leaves_no_folders(word_data, tmp_path):
    with pytest.raises(ValueError, match="tokens_per_update"):
        run(word_data, tmp_path / "new" / "run", "batches.tokens=96")
    assert not (tmp_path / "new").exists()
