import resource
import shutil

import pytest
from studies.study_runs import report, validation

from zipflm.runs.folder import append_line, locate, parse_choice, read_lines, trim


def test_lists_complete_checkpoints_newest_first(copy):
    for name in (".update-00000009", "update-9", "update-00000009x", ".damaged-update-00000008"):
        (copy.checkpoints_path / name).mkdir()
    assert [checkpoint.update for checkpoint in copy.checkpoints()] == [6, 4, 2]


def test_best_has_the_lowest_validation_loss(copy):
    losses = {c.update: c.state().valid.nats_per_word for c in copy.checkpoints()}
    assert copy.choose("best").update == min(losses, key=losses.get)
    assert (copy.choose("newest").update, copy.choose(4).update) == (6, 4)


def test_best_ignores_damaged_checkpoints(copy):
    first = copy.best()
    path = first.path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    second = copy.best()
    assert second.update != first.update
    (second.path / "state.json").write_text("{}")
    assert copy.best().update not in (first.update, second.update)


def test_locates_runs_and_checkpoints(copy):
    run, checkpoint = locate(copy.path, None)
    assert (run.path, checkpoint.update) == (copy.path, 6)
    run, checkpoint = locate(copy.choose(2).path, None)
    assert (run.path, checkpoint.update) == (copy.path, 2)


def test_parses_checkpoint_choices():
    assert [parse_choice(text) for text in (None, "best", "0012")] == [None, "best", 12]
    with pytest.raises(ValueError, match="choose newest, best or a number"):
        parse_choice("-1")


def test_records_versions_and_resumptions(copy, word_data):
    versions = copy.versions()
    assert versions.text == word_data.split("train").sha256
    assert versions.vocabulary == word_data.vocabulary.hash
    assert versions.latest is versions
    copy.record_start(copy.config(), word_data, 4, "cpu")
    assert [resumed.update for resumed in copy.versions().resumed] == [4]
    assert copy.versions().latest.update == 4
    assert max(line.update for line in copy.log()) == 4


@pytest.mark.parametrize("name", ["config.json", "versions.json"])
def test_rejects_damaged_records(copy, name):
    (copy.path / name).write_bytes(b"{")
    with pytest.raises(ValueError, match=f"{name}: damaged or from another release"):
        copy.config() if name == "config.json" else copy.versions()


def test_locates_a_checkpoint_outside_a_run(copy, tmp_path):
    alone = shutil.copytree(copy.choose(6).path, tmp_path / "mine")
    run, checkpoint = locate(alone, None)
    assert run.path == checkpoint.path == alone and run.log() == []


LINES = [report(1, 1.0, 5.0), report(2, 2.0, 4.5), validation(2, 2.0, 80.0), report(3, 3.0, 4.0)]


@pytest.fixture
def path(tmp_path):
    for line in LINES:
        append_line(tmp_path / "log.jsonl", line)
    return tmp_path / "log.jsonl"


def test_reads_log_lines(path):
    assert read_lines(path) == LINES
    assert read_lines(path.with_name("absent")) == []


def test_trims_the_log(path):
    with path.open("ab") as file:
        file.write(b'{"kind"')  # incomplete
    assert read_lines(path) == LINES
    trim(path, 2)
    assert read_lines(path) == LINES[:3]


def test_a_full_disk_leaves_no_partial_line(path):
    # A file size limit fails like a full disk.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append_line(path, report(4, 4.0, 3.5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    append_line(path, report(5, 5.0, 3.0))
    assert read_lines(path) == [*LINES, report(5, 5.0, 3.0)]


def test_rejects_damaged_log_lines(path):
    content = path.read_bytes().split(b"\n")
    content[1] = b'{"kind": "Report"}'
    path.write_bytes(b"\n".join(content))
    with pytest.raises(ValueError, match="line 2: damaged, or written by another version"):
        read_lines(path)
