"""What a run tells: lines for people, objects in the log."""

import io
from dataclasses import replace

import pytest
from studies.study_runs import report, validation

from zipflm.runs.folder import RunFolder
from zipflm.training.metrics import Log, as_text

REPORT = replace(
    report(5, 9.0, 2.0, speed=1234.5, memory=2**31),
    epoch=1.5,
    learning_rate=0.5,
    skipped=3,
    seconds_left=3723.0,
    flop_utilisation=0.41,
)


def test_a_line_shows_what_a_report_holds():
    line = as_text(REPORT, 10)
    for part in ("update 5/10", "epoch 1.50", "loss 2.0000 ", "perplexity 7.39", "lr 0.5"):
        assert part in line
    for part in ("1,234 tokens/s", "41.0% of peak", "2.0 GiB", "left 1:02:03", "skipped 3"):
        assert part in line


def test_a_loss_of_pieces_says_so_and_stands_beside_that_of_words():
    pieces = replace(REPORT, token_unit="bpe", loss=2.0, nats_per_word=3.0, perplexity=20.09)
    assert "loss 2.0000 per piece, 3.0000 per word  perplexity 20.09" in as_text(pieces, 10)


def test_a_model_that_should_be_compiled_and_is_not_is_said_to_be_so():
    assert "NOT COMPILED" in as_text(replace(REPORT, compiled=False), 10)
    assert "COMPILED" not in as_text(replace(REPORT, compiled=True), 10)


def test_numbers_that_are_not_finite_are_said_to_be():
    bad = replace(REPORT, loss=None, nats_per_word=None, perplexity=None, grad_norm=float("nan"))
    line = as_text(bad, 10)
    assert "loss not finite  perplexity not finite" in line and "norm not finite" in line


def test_a_validation_is_per_word_with_its_protocol():
    line = as_text(validation(5, 1.0, 80.0), 10)
    assert "valid loss 4.3820 per word  perplexity 80.00" in line
    assert "complete blocks of 64, context 0" in line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_whole_lines_and_a_bar(tmp_path, monkeypatch):
    """80 columns are fewer than a line has."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"COLUMNS": "80", "LINES": "25", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    line = replace(REPORT, update=22)
    with Log(RunFolder(tmp_path), max_updates=30) as log:
        log.begin(20)
        began = len(terminal.getvalue())
        log.advance(21)
        log.advance(22)
        log.report(line)
    shown = terminal.getvalue()
    assert "20/30" in shown[:began] and "22/30" in shown[began:]
    assert as_text(line, 30) in shown and len(as_text(line, 30)) > 80


def test_what_is_said_is_what_the_log_holds(tmp_path):
    with Log(RunFolder(tmp_path), max_updates=10) as log:
        log.report(REPORT)
        log.report(validation(5, 1.0, 80.0))
    assert RunFolder(tmp_path).log() == [REPORT, validation(5, 1.0, 80.0)]


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path, capsys):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with Log(RunFolder(tmp_path), max_updates=10) as log:
        log.report(validation(1, 1.0, 2.7))
    said = capsys.readouterr().out
    assert "No space left" in said and "valid loss 0.9933" in said


def test_a_silent_log_writes_nothing(tmp_path, capsys):
    with Log(RunFolder(tmp_path), max_updates=10, is_silent=True) as log:
        log.report(REPORT)
        log.say("nothing")
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", [REPORT, validation(5, 1.0, 80.0)], ids=["report", "validation"])
def test_tensorboard_gets_every_number_of_a_line(tmp_path, line):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Log(RunFolder(tmp_path), max_updates=10, tensorboard=True) as log:
        log.report(line)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    names = events.Tags()["scalars"]
    prefix = "train" if line is REPORT else "valid"
    assert f"{prefix}/nats_per_word" in names and f"{prefix}/perplexity" in names


def test_what_is_being_done_stands_beside_the_bar(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"COLUMNS": "100", "LINES": "25", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    with Log(RunFolder(tmp_path), max_updates=30) as log:
        log.begin(0)
        with log.doing("compiling", "a line"):
            log.say("meanwhile")
        before = len(terminal.getvalue())
        log.say("afterwards")
    shown = terminal.getvalue()
    assert "compiling ..." in shown[:before] and "a line" not in shown
    assert "compiling" not in shown[shown.index("afterwards") :]


def test_without_a_bar_a_line_says_what_is_being_done(tmp_path, capsys):
    with Log(RunFolder(tmp_path), max_updates=30) as log:
        log.begin(0)
        with log.doing("compiling", "this may take minutes"), log.doing("saving"):
            pass
    assert capsys.readouterr().out == "this may take minutes\n"
