"""Counters, log lines and the progress bar of a run."""

import io
import math
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from studies.study_runs import report, validation
from training_runs import Killed, disturb, reports, run

from zipflm.runs.folder import RunFolder
from zipflm.training.metrics import Log, Tally, as_text
from zipflm.training.step import UpdateResult


def result(nll=10.0, tokens=4.0, words=2.0, norm=1.0, bad=0.0, stop=0.0):
    return UpdateResult(nll=nll, tokens=tokens, words=words, norm=norm, bad=bad, stop=stop)


BAD = result(nll=math.nan, norm=math.inf, bad=1.0)


@given(st.lists(st.lists(st.booleans(), max_size=4), max_size=6))
def test_skipped_updates_are_counted_but_not_summed(groups):
    """True is a good update; a report is made after every group."""
    tally, in_a_row, skipped = Tally(skipped=2), 0, 2
    for group in groups:
        tally.add([result() if good else BAD for good in group])
        for good in group:
            in_a_row = 0 if good else in_a_row + 1
            skipped += not good
        since = tally.take()
        assert (since.nll, since.tokens, since.words) == (
            10.0 * sum(group), 4 * sum(group), 2 * sum(group)
        )  # fmt: skip
        assert since.updates == len(group)
        assert (tally.skipped_in_a_row, tally.skipped) == (in_a_row, skipped)


def test_keeps_a_request_to_stop():
    tally = Tally()
    tally.add([result()])
    assert not tally.should_stop
    tally.add([BAD._replace(stop=1.0), result()])
    tally.take()
    assert tally.should_stop


def test_saved_counters_do_not_change():
    """They can be written while training continues."""
    tally = Tally()
    tally.add([result()])
    saved = Tally(**tally.counters())
    tally.add([result()])
    assert (saved.update, saved.since_report.updates, saved.since_report.nll) == (1, 1, 10.0)


def test_counts_training_time_compilation_and_cpu_time(monkeypatch):
    learner, now = SimpleNamespace(num_versions=0), [100.0]
    for name in ("thread_time", "perf_counter"):
        monkeypatch.setattr(f"zipflm.training.metrics.time.{name}", lambda: now[0])
    tally, uncounted = Tally(seconds=50.0, compile_seconds=5.0, cpu_seconds=5.0), Tally()
    with tally.compiling(learner):
        learner.num_versions, now[0] = 1, 130.0
    with tally.compiling(learner):
        now[0] += 2.0
    tally.pause()
    uncounted.pause()
    now[0] += 50.0  # validating
    tally.resume()
    now[0] += 1.0
    tally.pause()
    assert (tally.seconds, tally.compile_seconds, tally.cpu_seconds) == (83.0, 35.0, 8.0)
    assert uncounted.cpu_seconds is None
    assert tally.take().seconds == 33.0 and tally.take().seconds == 0.0


REPORT = replace(
    report(5, 9.0, 2.0, speed=1234.5, memory=2**31),
    epoch=1.5,
    learning_rate=0.5,
    skipped=3,
    seconds_left=3723.0,
    flop_utilisation=0.41,
)


def test_formats_log_lines():
    line = as_text(REPORT, 10)
    for part in ("update 5/10", "epoch 1.50", "loss 2.0000 ", "perplexity 7.39", "lr 0.5"):
        assert part in line
    for part in ("1,234 tokens/s", "41.0% of peak", "2.0 GiB", "left 1:02:03", "skipped 3"):
        assert part in line
    pieces = replace(REPORT, token_unit="bpe", loss=2.0, nats_per_word=3.0, perplexity=20.09)
    assert "loss 2.0000 per piece, 3.0000 per word  perplexity 20.09" in as_text(pieces, 10)
    assert "NOT COMPILED" in as_text(replace(REPORT, compiled=False), 10)
    assert "COMPILED" not in as_text(replace(REPORT, compiled=True), 10)
    bad = replace(REPORT, loss=None, nats_per_word=None, perplexity=None, grad_norm=float("nan"))
    assert "loss not finite  perplexity not finite" in as_text(bad, 10)
    line = as_text(validation(5, 1.0, 80.0), 10)
    assert "valid loss 4.3820 per word  perplexity 80.00" in line
    assert "block 64, context 0, break complete" in line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_a_bar_and_whole_lines(tmp_path, monkeypatch):
    """Lines are longer than the 80 columns of the terminal."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"COLUMNS": "80", "LINES": "25", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    line = replace(REPORT, update=22)
    log = Log(RunFolder(tmp_path), max_updates=30)
    log.start(20)
    began = len(terminal.getvalue())
    with log.status("saving"):
        log.info("meanwhile")
    log.advance(22)
    log.report(line)
    log.close()
    shown = terminal.getvalue()
    assert "20/30" in shown[:began] and "22/30" in shown[began:]
    assert as_text(line, 30) in shown and len(as_text(line, 30)) > 80
    assert "saving ..." in shown


def test_prints_every_log_line(tmp_path, capsys):
    log = Log(RunFolder(tmp_path), max_updates=10)
    log.start(0)
    with log.status("saving"):
        log.report(REPORT)
    log.report(validation(5, 1.0, 80.0))
    assert RunFolder(tmp_path).log() == [REPORT, validation(5, 1.0, 80.0)]
    first, second = capsys.readouterr().out.splitlines()
    assert first == as_text(REPORT, 10) and "valid loss" in second


def test_a_full_disk_does_not_end_the_run(tmp_path, capsys):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    Log(RunFolder(tmp_path), max_updates=10).report(validation(1, 1.0, 2.7))
    output = capsys.readouterr().out
    assert "No space left" in output and "valid loss 0.9933" in output


def test_a_silent_log_writes_nothing(tmp_path, capsys):
    log = Log(RunFolder(tmp_path), max_updates=10, is_silent=True)
    log.report(REPORT)
    log.info("nothing")
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


def test_writes_tensorboard_events(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = Log(RunFolder(tmp_path), max_updates=10, tensorboard=True)
    log.start(0)
    log.report(REPORT)
    log.report(validation(5, 1.0, 80.0))
    log.close()
    names = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["scalars"]
    assert {"train/perplexity", "valid/perplexity", "valid/nats_per_word"} <= {*names}


def test_a_resumed_run_replaces_later_tensorboard_events(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for done, losses in ((0, {5: 3.0, 10: 2.0, 15: 1.5}), (5, {10: 2.5})):
        log = Log(RunFolder(tmp_path), max_updates=20, tensorboard=True)
        log.start(done)
        for update, loss in losses.items():
            log.report(replace(REPORT, update=update, loss=loss))
        log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [(5, 3.0), (10, 2.5)]


MEASURED = {"seconds", "cpu_seconds", "seconds_left", "tokens_per_second", "data_share", "memory"}
LENGTH = [
    "training.max_updates=17",
    "training.report_every=5",
    "training.validate_every=6",
    "training.checkpoint_every=4",
]


def lines(out):
    """The log without measurements of time and memory."""
    return [
        (type(line).__name__, *((f.name, getattr(line, f.name)) for f in fields(line)
                                if f.name not in MEASURED))
        for line in RunFolder(out).log()
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    torch.set_num_threads(1)  # rounds as in the tests
    run(word_data, out, *LENGTH)
    return out


def tokens_of_second_report(out):
    first, second = reports(out)[:2]
    return second.tokens_per_second * (second.seconds - first.seconds)


@pytest.mark.parametrize("stops", [(3,), (2, 1, 4), (13, 2)])
def test_a_stopped_run_has_the_same_log(word_data, tmp_path, monkeypatch, whole, stops):
    out = tmp_path / "run"
    for update in stops:
        with monkeypatch.context() as patch:
            disturb(patch, stop=update)
            assert not run(word_data, out, *LENGTH, resume=True)
    assert run(word_data, out, *LENGTH, resume=True)
    assert lines(out) == lines(whole)
    # The speed covers all updates since the last report.
    expected = tokens_of_second_report(whole)
    assert tokens_of_second_report(out) == pytest.approx(expected, rel=1e-6)


def test_a_killed_run_has_the_same_log(word_data, tmp_path, monkeypatch, whole):
    out = tmp_path / "run"
    for update in (9, 2, 6):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            disturb(patch, kill=update)
            run(word_data, out, *LENGTH, resume=True)
    assert run(word_data, out, *LENGTH, resume=True)
    assert lines(out) == lines(whole)


def test_a_stopped_run_reports_the_same_skipped_updates(word_data, tmp_path, monkeypatch):
    """With a skipped update before and after the interruption."""
    with monkeypatch.context() as patch:
        disturb(patch, bad={6, 9})
        run(word_data, tmp_path / "whole", *LENGTH)
    with monkeypatch.context() as patch:
        disturb(patch, bad={6}, stop=6)
        run(word_data, tmp_path / "halves", *LENGTH)
    done = RunFolder(tmp_path / "halves").choose("newest").update
    with monkeypatch.context() as patch:
        disturb(patch, bad={9 - done})
        run(word_data, tmp_path / "halves", *LENGTH, resume=True)
    assert lines(tmp_path / "halves") == lines(tmp_path / "whole")
    assert reports(tmp_path / "whole")[-1].skipped == 2
