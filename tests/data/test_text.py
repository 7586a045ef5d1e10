import bz2
import gzip
import importlib.util
import io
import lzma
import os
import re
import sys

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data import text
from zipflm.data.prepare import prepare
from zipflm.data.text import (
    check_encoding,
    chunks,
    expand,
    is_url,
    line_groups,
    stored_size,
)

LINES = "".join(f"line {number} of the text\n" for number in range(2000)).encode()
COMPRESSORS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
if importlib.util.find_spec("zstandard"):  # an extra
    import zstandard

    COMPRESSORS[".zst"] = zstandard.ZstdCompressor().compress


def joined(name, size):
    found = list(chunks(str(name), size))
    assert [chunk.start for chunk in found] == [
        sum(chunk.size for chunk in found[:number]) for number in range(len(found))
    ]
    return b"".join(chunk.read() for chunk in found)


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=60), st.integers(1, 20))
def test_chunks_end_at_line_ends(tmp_path_factory, data, size):
    path = tmp_path_factory.mktemp("text") / "x.txt"
    path.write_bytes(data)
    assert joined(path, size) == data
    assert all(chunk.read().endswith(b"\n") for chunk in list(chunks(str(path), size))[:-1])


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_reads_compressed_text(tmp_path, suffix):
    path = tmp_path / f"x.txt{suffix}"
    # Two concatenated streams, as `cat` makes them.
    path.write_bytes(2 * COMPRESSORS[suffix](LINES))
    assert joined(path, 1000) == 2 * LINES
    assert sum(c.consumed for c in chunks(str(path), 1000)) == stored_size([str(path)])


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_rejects_damaged_compressed_text(tmp_path, suffix):
    path = tmp_path / f"x.txt{suffix}"
    whole = COMPRESSORS[suffix](LINES)
    for data in (whole[: len(whole) // 2], b"this was never compressed"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{path.name}: damaged"):
            list(chunks(str(path)))


def test_reads_standard_input_once(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    assert joined("-", 1000) == LINES
    assert stored_size(["-"]) is None
    with pytest.raises(ValueError, match="only once"):
        expand(["-", "-"])


def test_expands_globs(tmp_path):
    for name in ("b.txt", "a.txt", "a [1].txt"):
        (tmp_path / name).write_text("x\n")
    assert expand([f"{tmp_path}/?.txt"]) == [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"]
    # A name that looks like a glob but is a file is that file.
    assert expand([f"{tmp_path}/a [1].txt"]) == [f"{tmp_path}/a [1].txt"]
    with pytest.raises(FileNotFoundError, match=r"\*.csv: no such file"):
        expand([f"{tmp_path}/*.csv"])
    with pytest.raises(IsADirectoryError, match="a folder"):
        expand([tmp_path])


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rejects_empty_files(tmp_path, suffix):
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"") if suffix else b"")
    with pytest.raises(ValueError, match=f"{path.name}: empty"):
        list(chunks(str(path)))


def test_detects_truncation_while_reading(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(LINES)
    found = list(chunks(str(path), 1000))
    path.write_bytes(LINES[:1500])
    with pytest.raises(ValueError, match="truncated while being read"):
        found[1].read()


WORDS = "caf\u00e9 au lait\n\u00fcber alles\nlast line"
OTHERS = ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8-sig"]


@pytest.mark.parametrize("encoding", OTHERS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_converts_encodings_to_utf_8(tmp_path, encoding, size):
    path = tmp_path / "x.txt"
    path.write_bytes(WORDS.encode(encoding))
    found = chunks(str(path), size, encoding=encoding)
    assert b"".join(chunk.read() for chunk in found).decode() == WORDS
    groups = line_groups(str(path), encoding=encoding)
    assert [line for lines, _ in groups for line in lines] == WORDS.encode().split(b"\n")


def test_characters_across_read_boundaries(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_READ_BYTES", 3)
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(WORDS.encode("utf-16")))
    found = list(chunks(str(path), encoding="utf-16"))
    assert b"".join(chunk.read() for chunk in found).decode() == WORDS
    assert sum(chunk.consumed for chunk in found) == path.stat().st_size


@pytest.mark.parametrize("data", [b"a\0\xd8\xd8\xd8\xd8", b"a\0b\0c"])
def test_invalid_bytes_in_other_encodings(tmp_path, data):
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x.txt: not utf-16-le; use another"):
        list(chunks(str(path), encoding="utf-16-le"))
    (chunk,) = chunks(str(path), encoding="utf-16-le", errors="replace")
    assert chunk.read().decode().startswith("a") and "\ufffd" in chunk.read().decode()


@pytest.mark.parametrize("encoding", ["klingon", "base64", "rot13", "", "a\0b"])
def test_rejects_unknown_encodings(encoding):
    with pytest.raises(ValueError, match="encoding=.*: unknown; try latin-1"):
        check_encoding(encoding)


TEXT = "one two\r\nthree four\n" * 500 + "five"


@pytest.fixture
def store():
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def put(store, name, data):
    with store.open(f"/{name}", "wb") as file:
        file.write(data)
    return f"memory://{name}"


@pytest.mark.parametrize("name", ["s3://b/x", "memory://x", "file:///x", "hdfs://h:1/x"])
def test_is_url(name):
    assert is_url(name)
    for path in ("a/b.txt", "/a://b", "-", "C:/x", "c://x", "a:b", "s3:/b", "s3://"):
        assert not is_url(path)


def test_url_chunks_match_file_chunks(tmp_path, store):
    size = 1000
    path, url = tmp_path / "x.txt", put(store, "x.txt", TEXT.encode())
    path.write_bytes(TEXT.encode())
    for name in (url, f"file://{path}"):
        found, expected = list(chunks(name, size)), list(chunks(str(path), size))
        assert [chunk.read() for chunk in found] == [chunk.read() for chunk in expected]
        assert [chunk.start for chunk in found] == [chunk.start for chunk in expected]
        assert all(chunk.data is None for chunk in found)  # a worker fetches its part
        assert stored_size([name, str(path)]) == 2 * len(TEXT)


def test_reads_compressed_urls(store):
    url = put(store, "x.bz2", bz2.compress(TEXT.encode()))
    assert b"".join(chunk.read() for chunk in chunks(url, 100)) == TEXT.encode()
    old = put(store, "old.txt", "caf\u00e9\n".encode("latin-1"))
    (chunk,) = chunks(old, encoding="latin-1")
    assert chunk.read() == "caf\u00e9\n".encode()
    assert [line for lines, _ in line_groups(old) for line in lines] == [b"caf\xe9"]


def test_expands_url_globs(tmp_path, store):
    for name in "ba":
        put(store, f"part/{name}.txt", name.encode())
    found = expand(["memory://part/*.txt"])
    assert [chunk.read() for url in found for chunk in chunks(url)] == [b"a", b"b"]
    (tmp_path / "x.txt").write_text("a\n")
    assert [os.path.basename(u) for u in expand([f"file://{tmp_path}/*.txt"])] == ["x.txt"]
    for missing in ("memory://part/z.txt", "memory://none/*"):
        with pytest.raises(FileNotFoundError, match=re.escape(missing)):
            expand([missing])


def test_missing_url_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ValueError, match="^s3://bucket/x.txt: Install s3fs"):
        prepare(tmp_path / "d", {"train": ["s3://bucket/x.txt"]})
    assert not any(tmp_path.iterdir())


def test_store_errors_name_the_url(store, monkeypatch):
    url = put(store, "x.txt", b"a\n")

    def fail(*arguments, **options):
        raise RuntimeError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    with pytest.raises(OSError, match=r"^memory://x.txt: could not be read: RuntimeError: no cred"):
        list(chunks(url))
