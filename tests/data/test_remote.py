"""Texts by URL, without a network: in memory, and as files."""

import bz2
import gzip
import os
import re
import sys

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from zipflm.data.prepare import Options, prepare
from zipflm.data.remote import is_url
from zipflm.data.text import MAX_LINE_BYTES, chunks, expand, line_groups, stored_size

TEXT = "one two\r\nthree four\n" * 500 + "five"


@pytest.fixture
def store():
    """A store that is empty before and after."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def put(store, name, data):
    with store.open(f"/{name}", "wb") as file:
        file.write(data)
    return f"memory://{name}"


@pytest.mark.parametrize("name", ["s3://b/x", "memory://x", "file:///x", "hdfs://h:1/x"])
def test_urls_are_told_from_paths(name):
    assert is_url(name)
    for path in ("a/b.txt", "/a://b", "-", "C:/x", "c://x", "a:b", "s3:/b", "s3://"):
        assert not is_url(path)


@pytest.mark.parametrize("size", [50, 1000, 1 << 22])
def test_chunks_of_a_url_are_those_of_a_file(tmp_path, store, size):
    path, url = tmp_path / "x.txt", put(store, "x.txt", TEXT.encode())
    path.write_bytes(TEXT.encode())
    for name in (url, f"file://{path}"):
        found, wanted = list(chunks(name, size)), list(chunks(str(path), size))
        assert [chunk.read() for chunk in found] == [chunk.read() for chunk in wanted]
        assert [chunk.start for chunk in found] == [chunk.start for chunk in wanted]
        assert all(chunk.data is None for chunk in found)  # a worker fetches its part
        assert stored_size([name, str(path)]) == 2 * len(TEXT)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress)], ids=["gz", "bz2"]
)
def test_compressed_urls_and_other_encodings_are_read_as_streams(store, suffix, compress):
    url = put(store, f"x{suffix}", compress(TEXT.encode()))
    assert b"".join(chunk.read() for chunk in chunks(url, 100)) == TEXT.encode()
    old = put(store, "old.txt", "caf\u00e9\n".encode("latin-1"))
    (chunk,) = chunks(old, encoding="latin-1")
    assert chunk.read() == "caf\u00e9\n".encode()
    assert [line for lines, _ in line_groups(old) for line in lines] == [b"caf\xe9"]


def test_globs_are_expanded_and_sorted(tmp_path, store):
    for name in "ba":
        put(store, f"part/{name}.txt", name.encode())
    found = expand(["memory://part/*.txt"])
    assert [chunk.read() for url in found for chunk in chunks(url)] == [b"a", b"b"]
    (tmp_path / "x.txt").write_text("a\n")
    assert [os.path.basename(u) for u in expand([f"file://{tmp_path}/*.txt"])] == ["x.txt"]
    for missing in ("memory://part/z.txt", "memory://none/*"):
        with pytest.raises(FileNotFoundError, match=re.escape(missing)):
            expand([missing])
    with pytest.raises(IsADirectoryError, match="a folder"):
        expand(["memory://part"])


@pytest.mark.parametrize("processes", [1, 2])
def test_a_folder_from_urls_is_that_from_files(tmp_path, store, processes, monkeypatch):
    monkeypatch.setattr("zipflm.data.prepare.CHUNK_BYTES", 1000)
    (tmp_path / "x.txt").write_bytes(TEXT.encode())
    # Other processes do not see what is in this one's memory.
    url = put(store, "x.txt", TEXT.encode()) if processes == 1 else f"file://{tmp_path}/x.txt"
    prepare(tmp_path / "ours", {"train": [url]}, processes=processes)
    prepare(tmp_path / "theirs", {"train": [tmp_path / "x.txt"]})
    for path in (tmp_path / "theirs").iterdir():
        assert (tmp_path / "ours" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("url", ["s3://bucket/x.txt", "gs://bucket/x.txt", "hdfs://host/x.txt"])
def test_a_library_that_is_missing_is_named_with_its_pip_line(tmp_path, monkeypatch, url):
    package = {"s3": "s3fs", "gs": "gcsfs", "hdfs": "pyarrow"}[url.split(":")[0]]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    message = f"^{url}: needs the package {package}: pip install {package}$"
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "d", {"train": [url]})
    assert not any(tmp_path.iterdir())


def test_a_missing_fsspec_is_named_with_its_pip_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match="^s3://b/x: needs fsspec: pip install fsspec$"):
        prepare(tmp_path / "d", {"train": ["s3://b/x"]})


def test_an_unknown_kind_of_url_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nonsense://x: .*; texts are files, or URLs such as s3:"):
        prepare(tmp_path / "d", {"train": ["nonsense://x"]})


def test_one_text_by_path_and_by_url_is_one_text(tmp_path):
    (tmp_path / "x.txt").write_text("a b\n")
    splits = {"train": [tmp_path / "x.txt"], "test": [f"file://{tmp_path}/x.txt"]}
    with pytest.raises(ValueError, match="both train and test text"):
        prepare(tmp_path / "d", splits, Options(min_count=1))


def test_what_a_store_raises_names_the_text(store, monkeypatch):
    url = put(store, "x.txt", b"a\n")

    def fail(*arguments, **options):
        raise RuntimeError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    with pytest.raises(OSError, match=r"^memory://x.txt: cannot be read: RuntimeError: no cred"):
        list(chunks(url))


def test_a_text_that_shrinks_and_an_endless_line_are_named(store):
    url = put(store, "x.txt", b"a b\n" * 10)
    (chunk,) = chunks(url)
    put(store, "x.txt", b"a b\n")
    with pytest.raises(ValueError, match="memory://x.txt: became shorter"):
        chunk.read()
    url = put(store, "x.txt", b"a" * (MAX_LINE_BYTES + 30))
    with pytest.raises(ValueError, match="longer than"):
        list(chunks(url, 20))
