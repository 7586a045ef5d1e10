import bz2
import gzip
import importlib.util
import io
import lzma
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data import text
from zipflm.data.text import (
    check_encoding,
    chunks,
    encoding_hint,
    expand,
    line_groups,
    stored_size,
)

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


WORDS = "caf\u00e9 au lait\n\u00fcber alles\nlast line"
OTHERS = ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8-sig"]


@pytest.mark.parametrize("encoding", OTHERS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_text_of_any_encoding_is_utf_8_from_here_on(tmp_path, encoding, size):
    path = tmp_path / "x.txt"
    path.write_bytes(WORDS.encode(encoding))
    found = chunks(str(path), size, encoding=encoding)
    assert b"".join(chunk.read() for chunk in found).decode() == WORDS
    groups = line_groups(str(path), size, encoding=encoding)
    assert [line for lines, _ in groups for line in lines] == WORDS.encode().split(b"\n")


def test_characters_that_reads_cut_in_two_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_READ_BYTES", 3)
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(WORDS.encode("utf-16")))
    found = list(chunks(str(path), encoding="utf-16"))
    assert b"".join(chunk.read() for chunk in found).decode() == WORDS
    assert sum(chunk.consumed for chunk in found) == path.stat().st_size


@pytest.mark.parametrize("data", [b"a\0\xd8\xd8\xd8\xd8", b"a\0b\0c"])
def test_what_is_not_of_the_encoding_is_refused_by_name_or_replaced(tmp_path, data):
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x.txt: not utf-16-le near byte [24]; give another"):
        list(chunks(str(path), encoding="utf-16-le"))
    (chunk,) = chunks(str(path), encoding="utf-16-le", errors="replace")
    assert chunk.read().decode().startswith("a") and "\ufffd" in chunk.read().decode()


@pytest.mark.parametrize("encoding", ["klingon", "base64", "rot13", "", "a\0b"])
def test_what_is_no_encoding_of_text_is_refused(encoding):
    with pytest.raises(ValueError, match="--encoding .*there is no such; try latin-1"):
        check_encoding(encoding)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (WORDS.encode("utf-16"), "--encoding utf-16$"),
        (100 * WORDS.encode("utf-16-le"), "--encoding utf-16-le$"),
        (100 * WORDS.encode("utf-16-be"), "--encoding utf-16-be$"),
        (WORDS.encode("latin-1"), r"give its --encoding \(latin-1, "),
    ],
)
def test_the_encoding_that_a_text_seems_to_have_is_suggested(data, hint):
    assert re.search(hint, encoding_hint(data))


@pytest.mark.skipif(".zst" not in COMPRESSORS, reason="needs zstandard")
def test_a_small_file_that_stands_for_much_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "bomb.zst"
    path.write_bytes(COMPRESSORS[".zst"](bytes(1 << 28)))
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    with pytest.raises(ValueError, match="longer than"):
        list(line_groups(str(path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 28
