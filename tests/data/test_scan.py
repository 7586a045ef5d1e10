import gzip
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.config import Splitting
from zipflm.data.scan import Scan, clean, map_in_processes, scan
from zipflm.data.splitting import Splitter
from zipflm.data.text import Chunk

# White space as str.split() has it, line ends, and a few words.
PARTS = st.sampled_from([" ", "\t", "\u00a0", "\u2028", "\x85", "\x1c", "\n", "\r\n", "\r", "a",
                         "bc", "</s>", "\u00e9", "\U0001f600", "<unk>"])  # fmt: skip


def chunk(data, start=5):
    return Chunk("x.txt", start, len(data), data, len(data))


def plain_words(content):
    """Reference implementation with str.split()."""
    lines = content.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [[*line.split(), "\0"] for line in (lines if lines[-1] else lines[:-1])]


def scanned(names, spool, processes=1, **options):
    result = Scan(spool)
    scan(map(str, names), result, partial(map_in_processes, processes=processes), **options)
    return result


def scanned_in_chunks(size, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zipflm.data.scan.CHUNK_BYTES", size)
        return scanned(*arguments)


def counts_of(result):
    return dict(zip(result.words, result.counts.tolist(), strict=True))


def running_words(result):
    words = result.words
    return [words[n] for numbers, places in result.chunks() for n in numbers[places].tolist()]


@settings(max_examples=60)
@given(st.lists(PARTS, min_size=1).map("".join))
def test_scan_matches_reference(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("scan")
    (folder / "x.txt").write_text(content, encoding="utf-8", newline="")
    result = scanned([folder / "x.txt"], folder / "spool")
    expected = [word for line in plain_words(content) for word in line]
    assert running_words(result) == expected
    assert counts_of(result) == Counter(expected)
    assert result.num_tokens == len(expected)
    assert result.num_sentences == expected.count("\0")


def test_result_is_independent_of_chunks_and_processes(tmp_path):
    lines = [f"w{number % 97} v{number % 31} {'x' * (number % 7)}" for number in range(3000)]
    path = tmp_path / "x.txt"
    path.write_text("\n".join(lines))
    results = [
        scanned_in_chunks(size, [path] * 2, tmp_path / f"{processes}-{size}", processes)
        for processes, size in ((1, 1 << 20), (1, 999), (2, 999))
    ]
    assert [len(list(result.chunks())) for result in results[:2]] == [2, 70]
    for result in results[1:]:
        assert running_words(result) == running_words(results[0])
        assert counts_of(result) == counts_of(results[0])


@pytest.mark.parametrize("processes", [1, 2])
def test_invalid_text_error_names_file_and_byte(tmp_path, processes):
    path = tmp_path / "x.txt"
    path.write_bytes(b"good line\n" * 10 + b"bad \xff byte\n")
    with pytest.raises(ValueError, match="x.txt: not UTF-8 at byte 104; .*use --errors replace"):
        scanned_in_chunks(50, [path], tmp_path / "spool", processes)


def die(chunk):
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_worker_raises_error():
    with pytest.raises(ChildProcessError, match="a worker process was killed"):
        list(map_in_processes(die, iter([chunk(b"a\n")] * 2), processes=2))


def test_invalid_text_error_names_byte_of_stream(tmp_path):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"good line\r\n\xef\xbb\xbf \xff\n"))
    with pytest.raises(ValueError, match="x.txt.gz: not UTF-8 at byte 15"):
        scanned([path], tmp_path / "spool")


def test_errors_replace():
    data = b"a\0b \xc3( \xe2\x82\n"
    assert clean(chunk(data), data, "replace").decode() == "a\ufffdb \ufffd( \ufffd\n"


def test_removes_byte_order_mark():
    data = "\ufeffa \ufeffb".encode()
    assert clean(chunk(data, 0), data, "strict").decode() == "a \ufeffb\n"
    assert clean(chunk(data, 5), data, "strict").decode() == "\ufeffa \ufeffb\n"


@settings(max_examples=60)
@given(
    text=st.lists(PARTS | st.sampled_from(["It's", "O'B.", "(x-y)"]), min_size=1).map("".join),
    rule=st.sampled_from(["whitespace", "words", "wikitext"]),
    lowercase=st.booleans(),
)
def test_splitting_tokens_matches_splitting_lines(tmp_path_factory, text, rule, lowercase):
    folder, splitting = tmp_path_factory.mktemp("scan"), Splitting(rule, lowercase)
    (folder / "x.txt").write_text(text, encoding="utf-8", newline="")
    result = scanned([folder / "x.txt"], folder / "spool", splitting=splitting)
    lines = [" ".join(line[:-1]) for line in plain_words(text)]
    splitter = Splitter(splitting)
    expected = [[*(piece.word for piece in splitter.words(line)), "\0"] for line in lines]
    found = running_words(result)
    assert found == [word for line in expected for word in line]
    assert result.num_tokens == len(found)


def test_scan_does_not_import_torch_or_tokenizers():
    code = "import sys, zipflm.data.scan; print({'tokenizers', 'torch'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
