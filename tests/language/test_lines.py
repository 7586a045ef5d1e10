import gzip
import io
import sys

import pytest

from zipflm.language.files import numbered_lines


def test_numbers_lines(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("one\r\n\ntwo \u2028 and\x0bmore\nlast".encode())
    expected = [(1, "one"), (2, ""), (3, "two \u2028 and\x0bmore"), (4, "last")]
    assert list(numbered_lines(str(path))) == expected
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(numbered_lines(str(packed))) == expected


def test_skips_the_byte_order_mark(tmp_path):
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfutt-1 a\n\xef\xbb\xbfutt-2 b\n")
    assert list(numbered_lines(str(path))) == [(1, "utt-1 a"), (2, "\ufeffutt-2 b")]


def test_reads_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert list(numbered_lines("-")) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nb\0d\n", "bad.txt: line 2: a NUL byte"),
        (b"good\ngood\nb\xffd\n", "bad.txt: line 3: not UTF-8 at byte 1"),
        (b"", "bad.txt: empty"),
        (gzip.compress(b"text", mtime=0), "bad.txt: line 1: .*; decompress it"),
    ],
)
def test_rejects_invalid_text_with_its_line(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(numbered_lines(str(path)))
