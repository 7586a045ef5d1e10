import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zipflm.cli import main
from zipflm.data.folder import DataFolder

ROOT = Path(__file__).parent.parent.parent
TEXT = ROOT / "tests" / "golden" / "data" / "text"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def zipflm(*arguments, before=(), **keywords):
    return subprocess.run(
        [*before, sys.executable, "-m", "zipflm", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=120,
        **keywords,
    )


def test_prints_summary(tmp_path):
    done = zipflm(
        "prepare", TEXT / "tr*.txt", "--valid", TEXT / "valid.txt", "--out", tmp_path / "d"
    )
    assert done.returncode == 0, done.stderr
    assert "208 ids (word)" in done.stdout and "8,396 tokens" in done.stdout
    assert done.stderr.startswith("zipflm: warning: 8.1% of the words of the valid text are unkn")
    assert done.stderr.count("\n") == 1
    assert DataFolder.open(tmp_path / "d").splits == ("train", "valid")


def test_words_and_lowercase_options(tmp_path):
    (tmp_path / "x.txt").write_text('"Yes," he said, "it\'s so."\n' * 3)
    arguments = ("prepare", tmp_path / "x.txt", "--out", tmp_path / "d")
    done = zipflm(*arguments, "--words", "words", "--lowercase")
    assert done.returncode == 0, done.stderr
    assert "16 ids (word, --words words --lowercase)" in done.stdout
    folder = DataFolder.open(tmp_path / "d")
    assert folder.vocabulary.words[4:7] == ['"', ",", "."]
    taken = ("--vocabulary", tmp_path / "d" / "vocabulary.txt", "--out", tmp_path / "again")
    again = zipflm("prepare", tmp_path / "x.txt", *taken, "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["splits"]["train"]["sentences"] == 3
    assert DataFolder.open(tmp_path / "again").splitting == folder.splitting


def test_bpe_vocabulary_needs_codes(tmp_path):
    text = TEXT / "train.txt"
    assert zipflm("prepare", text, "--bpe", "20", "--out", tmp_path / "d").returncode == 0
    taken = ("--vocabulary", tmp_path / "d" / "vocabulary.txt", "--out", tmp_path / "again")
    done = zipflm("prepare", text, *taken)
    assert done.returncode == 2 and "bpe.codes" in done.stderr
    done = zipflm("prepare", text, *taken, "--bpe-codes", tmp_path / "d" / "bpe.codes")
    assert done.returncode == 0, done.stderr


def test_rejects_globs_expanded_by_the_shell(tmp_path):
    option = "--valid"
    for name in ("train.txt", "held-a.txt", "held-b.txt"):
        (tmp_path / name).write_bytes((TEXT / "train.txt").read_bytes())
    done = zipflm(
        "prepare", "train.txt", option, "held-a.txt", "held-b.txt", "--out", "d", cwd=tmp_path
    )
    assert done.returncode == 2
    assert f"held-b.txt: training text or part of {option}?" in done.stderr
    assert not (tmp_path / "d").exists()
    done = zipflm("prepare", "train.txt", "--out", "d", option, "held-*.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train     1 file " in done.stdout and "  2 files" in done.stdout


def test_rejects_file_in_two_splits(tmp_path):
    (tmp_path / "link.txt").symlink_to(TEXT / "train.txt")
    done = zipflm(
        *("prepare", TEXT / "train.txt", "--test", tmp_path / "link.txt"),
        *("--out", tmp_path / "d"),
    )
    assert done.returncode == 2
    assert "link.txt: used for both train and test" in done.stderr
    done = zipflm("prepare", "-", "--valid", "-", "--out", tmp_path / "d", input="a a a\n")
    assert done.returncode == 2 and "-: used for both train and valid" in done.stderr


def test_reads_standard_input(tmp_path):
    text = (TEXT / "train.txt").read_text(encoding="utf-8")
    done = zipflm("prepare", "-", "--out", tmp_path / "d", "--processes", 2, input=text)
    assert done.returncode == 0, done.stderr
    assert len(DataFolder.open(tmp_path / "d").tokens("train")) == 8396


def bad_lines():
    return {
        "empty": b"",
        "blank": b"\n \n",
        "nul": b"a\0b\n",
        "latin": b"caf\xe9 caf\xe9 caf\xe9\n",
        "vocabulary": b"a 1\nb 2\n",
        "duplicate": b"b 2\nb 2\n",
        "codes": b"a b c\n",
        "array.npy": b"\x93NUMPY",
        "compressed": gzip.compress(b"a b c\n"),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{empty}"], "empty: empty"),
        (["{blank}"], "blank: no words in the train split"),
        (["{nul}"], "nul: a NUL byte at byte 1"),
        (["{latin}"], "latin: not UTF-8 at byte 3; .*use --errors replace"),
        (["{compressed}"], "compressed: .*; decompress it"),
        (["no-such-file"], "no-such-file: no such file"),
        (["{train}", "--vocabulary", "{vocabulary}"], "vocabulary: line 2: count 2"),
        (["{train}", "--vocabulary", "{duplicate}"], "duplicate: line 2: 'b' is already"),
        (["{train}", "--bpe-codes", "{codes}"], "codes: first line"),
        (["{train}", "--valid", "{empty}"], "empty: empty"),
        (["{train}", "--errors", "ignore"], "--errors ignore: choose from strict, replace"),
        (["{train}", "--processes", "0"], "--processes 0"),
        (["{train}", "--words", "nonsense"], "--words nonsense: choose from whitespace, words"),
        (["{train}", "--engine", "spark"], "--engine spark: choose from processes, dask"),
        (["{train}", "--scheduler", "local"], "--scheduler local: needs engine=dask"),
        (["nonsense://x"], "nonsense://x: .*use a file"),
        (["{train}", "--corpus", "wikitext-2"], "cannot be combined with other texts"),
        (["{train}", "--ids", "x.npy"], "train.txt: cannot be combined with ids"),
        (["{array.npy}"], "array.npy: is an array, not text; pass it as ids"),
        (["--corpus", "wikitext-4"], "choose from state-of-the-union"),
        ([], "no training text"),
    ],
)
def test_invalid_input_exits_with_status_2(tmp_path, monkeypatch, capsys, arguments, message):
    names = {"{train}": str(TEXT / "train.txt")}
    for name, data in bad_lines().items():
        names[f"{{{name}}}"] = str(tmp_path / name)
        if f"{{{name}}}" in arguments:
            (tmp_path / name).write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    filled = [names.get(argument, argument) for argument in arguments]
    command = ["zipflm", "prepare", *filled, "--out", str(tmp_path / "new" / "d")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    stderr = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.search(message, stderr) and stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_full_disk_leaves_nothing(tmp_path):
    (tmp_path / "big.txt").write_text("some words that repeat\n" * 20_000)

    # A file size limit fails like a full disk.
    limited = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh"]
    done = zipflm(
        *("prepare", tmp_path / "big.txt", "--out", tmp_path / "d", "--processes", 2),
        before=limited,
    )
    assert done.returncode == 2
    assert "d: File too large while writing it; nothing was kept" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["big.txt"]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start_preparing(folder, **options):
    text = folder / "big.txt"
    text.write_text("".join(f"word{n} and word{n % 7919}\n" for n in range(300_000)))
    command = [sys.executable, "-m", "zipflm", "prepare", str(text)]
    command += ["--out", str(folder / "d"), "--processes", "2"]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, **options)


def preparing(folder):
    """Start `zipflm prepare` with two workers and wait until it reads."""
    process = start_preparing(folder)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    started, workers = time.monotonic(), []
    while not list(folder.glob(".d.unfinished-*/scan-*/train")):
        assert process.poll() is None and time.monotonic() - started < 60
        workers = children.read_text().split()
    return process, workers


def require_end(workers):
    started = time.monotonic()
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() - started < 60
        time.sleep(0.05)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
def test_ctrl_c_while_workers_start_prints_one_line(tmp_path):
    process = start_preparing(tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "zipflm: prepare: interrupted\n"
    assert process.returncode == 130


@needs_proc
def test_killed_command_leaves_no_data_folder(tmp_path):
    process, workers = preparing(tmp_path)
    process.kill()
    process.wait()
    assert not (tmp_path / "d").exists()
    with pytest.raises(ValueError, match="not a data folder"):
        DataFolder.open(next(tmp_path.glob(".d.unfinished-*")))
    require_end(workers)
    # The next run succeeds and removes the leftovers.
    assert zipflm("prepare", TEXT / "train.txt", "--out", tmp_path / "d").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.txt", "d"]


@needs_proc
@pytest.mark.slow
def test_repeated_kills_leave_nothing(tmp_path):
    text, draw = tmp_path / "text.txt", random.Random(3)
    text.write_text("".join(f"word{n} and word{n % 7919}\n" for n in range(60_000)))
    command = ["prepare", text, "--bpe", 2000, "--processes", 2, "--out"]
    assert zipflm(*command, tmp_path / "whole").returncode == 0
    left = 0
    for _ in range(5):
        (tmp_path / ".d.lock").unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "zipflm", *map(str, command), str(tmp_path / "d")],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
        )
        while not list(tmp_path.glob(".d.lock")):
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 1.5))
        process.kill()
        process.wait()
        left += len(list(tmp_path.glob(".d.unfinished-*")))
        assert len(list(tmp_path.glob(".d.*"))) <= 3, "leftovers accumulate"
    assert left > 0, "every kill was too early or too late"
    assert zipflm(*command, tmp_path / "d").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "whole", "d"}
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "d" / path.name).read_bytes() == path.read_bytes(), path.name


@needs_proc
def test_rejects_second_command_for_the_same_folder(tmp_path):
    process, _ = preparing(tmp_path)
    process.send_signal(signal.SIGSTOP)  # so that it does not finish first
    done = zipflm("prepare", TEXT / "train.txt", "--out", tmp_path / "d")
    process.send_signal(signal.SIGCONT)
    assert done.returncode == 2, done.stdout
    assert re.fullmatch(
        rf"zipflm: {tmp_path}/d: in use by process {process.pid} on \S+, since "
        r"[^;]*; wait until it finishes, or choose another folder\n",
        done.stderr,
    )
    assert process.wait(60) == 0
    DataFolder.open(tmp_path / "d").verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.txt", "d"]


@needs_proc
def test_sigterm_leaves_nothing(tmp_path):
    process, workers = preparing(tmp_path)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["big.txt"]
    require_end(workers)
