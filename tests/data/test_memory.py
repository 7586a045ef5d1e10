"""What a budget of memory is spent on, and what does not fit."""

import os
import subprocess
import sys

import pytest

from zipflm.data.memory import MemoryPlan, parse_size, shown_size
from zipflm.data.prepare import Options, prepare

M = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [("300", 300), ("2G", 2 << 30), ("1.5g", 3 << 29), ("256 MB", 256 * M), ("7k", 7 << 10)],
)
def test_sizes_are_read(text, size):
    assert parse_size("--memory", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "2X", "1e3", "0", "0.1", "nan", "9" * 400, "2GG"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="^--memory .*: write a number with K, M or G"):
        parse_size("--memory", text)


def test_sizes_are_shown_as_they_are_written():
    assert (shown_size(2 << 30), shown_size(256 * M)) == ("2G", "256M")
    assert (shown_size(1 << 10), shown_size(300)) == ("1K", "300")


def test_processes_share_the_budget():
    rich, poor = MemoryPlan.of(8 << 30, 8), MemoryPlan.of(256 * M, 8)
    assert rich.processes == 8 and rich.chunk_bytes == 4 * M
    assert poor.processes == 1 and poor.chunk_bytes < 4 * M
    for plan in (rich, poor):
        assert plan.total // 3 <= plan.counting < plan.total


def test_too_little_is_refused_with_what_it_takes():
    with pytest.raises(ValueError, match="^--memory 32M: reading and counting take at least 120M"):
        MemoryPlan.of(32 * M, 2)
    assert MemoryPlan.of(120 * M, 2).processes == 1


def test_a_vocabulary_that_does_not_fit_is_refused_with_what_to_set():
    plan = MemoryPlan.of(128 * M, 1)
    words = [(f"w{number}", 2 + number % 2) for number in range(400_000)]
    with pytest.raises(ValueError, match=r"^--memory 128M: more than .* 2 times or more.*--max-si"):
        list(plan.require_room(words, 2, None))
    with pytest.raises(ValueError, match="--max-size"):
        list(plan.require_room(words, 2, 300_000))
    assert list(plan.require_room(words, 2, 1000)) == words  # whoever ranks keeps those alone
    assert list(plan.require_room(words, 4, None)) == words


def test_too_many_words_to_learn_from_are_refused_with_what_to_do():
    plan = MemoryPlan.of(128 * M, 1)
    plan.require_room_for_learning(1000)
    with pytest.raises(ValueError, match="--memory 128M: learning .* 1,000,000 .*--bpe-codes"):
        plan.require_room_for_learning(1_000_000)


def test_bad_budgets_leave_nothing_behind(tmp_path):
    text = tmp_path / "x.txt"
    text.write_text("a b\n")
    with pytest.raises(ValueError, match="at least 120M"):
        prepare(tmp_path / "d", {"train": [text]}, Options(min_count=1), memory=M)
    assert os.listdir(tmp_path) == ["x.txt"]


# Not `ru_maxrss`, which begins with the memory of whoever started the process.
PEAK = """
import sys
from zipflm.data.prepare import Options, prepare
memory = int(sys.argv[3]) or None
prepare(sys.argv[2], {"train": [sys.argv[1]]}, Options(), memory=memory)
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux tells a process's peak")
def test_a_budget_is_kept_where_the_words_alone_would_exceed_it(tmp_path):
    text = tmp_path / "x.txt"
    with open(text, "w") as file:
        for first in range(0, 600_000, 10):
            rare = " ".join(f"w{number:07d}" for number in range(first, first + 10))
            file.write(f"the cat sat on {rare}\n")
    peaks = {}
    for memory in (0, 128):
        command = [sys.executable, "-c", PEAK, str(text), str(tmp_path / f"{memory}")]
        done = subprocess.run([*command, str(memory * M)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks[memory] = int(done.stdout)
    assert peaks[0] > 200 and peaks[128] < 128
    for name in ("vocabulary.txt", "train.tokens", "data.json", "checksums.json"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "128" / name).read_bytes()
