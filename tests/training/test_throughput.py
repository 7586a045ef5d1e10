"""Operations per token, counted by hand for a small model, and the lines people read."""

import io
import platform

import numpy as np
import pytest
import torch

from zipflm.presets import preset
from zipflm.training.log import Log, as_line
from zipflm.training.throughput import (
    flops_per_token,
    peak_flops,
    peak_memory,
    reset_peak_memory,
)


def test_a_token_meets_its_own_band_only():
    config = preset("tiny", "ADP-T")
    counts = np.zeros(4000, dtype=np.int64)
    counts[0] = 3  # three in four tokens in the head
    counts[500] = 1  # one in the first tail
    weights = config.params_by_part()["decoder.layers"]
    weights += 0.75 * 64 * 64 + 0.25 * 16 * 64  # input projections
    weights += 402 * 64 + 0.25 * 16 * (1200 + 64)  # head with classes, first tail
    attention = 6 * 2 * 64 * 32
    assert flops_per_token(config, counts, block=32) == pytest.approx(6 * weights + attention)


@pytest.mark.parametrize("name", ["SM", "SM-T", "BPE", "CNN", "ASM"])
def test_every_factorization_can_be_counted(name):
    config = preset("wikitext-103", name)
    counts = np.ones(config.vocab_size, dtype=np.int64)
    assert flops_per_token(config, counts, 512) > 6 * config.params_by_part()["decoder.layers"]


def test_a_tied_table_costs_as_much_as_an_untied_one():
    flops = [
        flops_per_token(preset("tiny", name), np.ones(4000, dtype=np.int64), 64)
        for name in ("SM", "SM-T")
    ]
    assert flops[0] == flops[1]


def test_a_cpu_has_no_known_peak_but_memory():
    assert peak_flops(torch.device("cpu")) is None
    assert peak_memory(torch.device("cpu")) > 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back")
def test_memory_that_was_freed_does_not_count_for_what_comes_next():
    cpu = torch.device("cpu")
    reset_peak_memory(cpu)
    before = peak_memory(cpu)
    blocks = [bytearray(b"x" * 100_000) for _ in range(3_000)]
    last = bytearray(b"x" * 100_000)  # above the others, so that these stay where they are
    del blocks
    assert peak_memory(cpu) > before + 250 * 2**20
    reset_peak_memory(cpu)
    assert peak_memory(cpu) < before + 50 * 2**20
    assert last


def test_a_line_shows_what_an_entry_holds():
    entry = {"update": 5, "epoch": 1.5, "loss": 2.0, "perplexity": 7.389, "learning_rate": 0.5}
    entry |= {"grad_norm": 0.1, "tokens_per_second": 1234.5, "memory": 2**31, "skipped": 3}
    line = as_line(entry | {"seconds_left": 3723, "flop_utilisation": 0.41}, 10)
    for part in ("update 5/10", "epoch 1.50", "loss 2.0000", "perplexity 7.39", "lr 0.5"):
        assert part in line
    for part in ("1,234 tokens/s", "41.0% of peak", "2.0 GiB", "left 1:02:03", "skipped 3"):
        assert part in line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_whole_lines_and_a_bar(tmp_path, monkeypatch):
    """80 columns are fewer than a line has."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"COLUMNS": "80", "LINES": "25", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    entry = {"update": 22, "epoch": 1.5, "loss": 2.0, "perplexity": 7.389, "learning_rate": 0.5}
    entry |= {"grad_norm": 0.1, "tokens_per_second": 1234.5, "memory": 2**31, "skipped": 3}
    entry |= {"seconds_left": 3723}
    with Log(tmp_path, max_updates=30) as log:
        log.begin(20)
        began = len(terminal.getvalue())
        log.advance(21)
        log.advance(22)
        log.report(entry)
    shown = terminal.getvalue()
    assert "20/30" in shown[:began] and "22/30" in shown[began:]
    assert as_line(entry, 30) in shown and len(as_line(entry, 30)) > 80


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path, capsys):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with Log(tmp_path, max_updates=10) as log:
        log.report(
            {
                "update": 1,
                "valid": {"loss": 1.0, "perplexity": 2.7, "words": 3}
                | {"break_mode": "none", "block": 4, "context": 0},
            }
        )
    said = capsys.readouterr().out
    assert "No space left" in said and "valid loss 1.0000" in said


def test_a_silent_log_writes_nothing(tmp_path, capsys):
    with Log(tmp_path, max_updates=10, is_silent=True) as log:
        log.report({"update": 1})
        log.say("nothing")
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())
