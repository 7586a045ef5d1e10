import bz2
import gzip
import importlib.util
import io
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data import text
from zipflm.data.text import chunks, expand, stored_size

LINES = "".join(f"line {number} of the text\n" for number in range(2000)).encode()
COMPRESSORS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
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
def test_chunks_are_the_file_cut_behind_line_ends(tmp_path_factory, data, size):
    path = tmp_path_factory.mktemp("text") / "x.txt"
    path.write_bytes(data)
    assert joined(path, size) == data
    assert all(chunk.read().endswith(b"\n") for chunk in list(chunks(str(path), size))[:-1])


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_text_reads_like_plain_text(tmp_path, suffix):
    path = tmp_path / f"x.txt{suffix}"
    # Two streams in one file, as `cat` makes them.
    path.write_bytes(2 * COMPRESSORS[suffix](LINES))
    assert joined(path, 1000) == 2 * LINES
    assert sum(c.consumed for c in chunks(str(path), 1000)) == stored_size([str(path)])


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_damaged_compressed_text_is_named(tmp_path, suffix):
    path = tmp_path / f"x.txt{suffix}"
    whole = COMPRESSORS[suffix](LINES)
    for data in (whole[: len(whole) // 2], b"this was never compressed"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{path.name}: damaged"):
            list(chunks(str(path)))


def test_standard_input_is_read_once(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    assert joined("-", 1000) == LINES
    assert stored_size(["-"]) is None
    with pytest.raises(ValueError, match="once only"):
        expand(["-", "-"])


def test_globs_are_sorted_and_missing_files_named(tmp_path):
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
def test_empty_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"") if suffix else b"")
    with pytest.raises(ValueError, match=f"{path.name}: empty"):
        list(chunks(str(path)))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_endless_line_is_refused(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 5000)
    data = LINES + b"word " * 2000 + b"\n" + LINES
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](data) if suffix else data)
    with pytest.raises(ValueError, match="longer than 5000 bytes"):
        list(chunks(str(path), 1000))


def test_file_that_shrinks_is_noticed(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(LINES)
    found = list(chunks(str(path), 1000))
    path.write_bytes(LINES[:1500])
    with pytest.raises(ValueError, match="became shorter"):
        found[1].read()
