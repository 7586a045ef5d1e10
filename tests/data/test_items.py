import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data import items
from zipflm.data.folder import DataFolder
from zipflm.data.items import load_names
from zipflm.data.prepare import Options, prepare
from zipflm.data.vocabulary import END

SEQUENCES = [[5, 5, 7], [0], [7, 5, 120_000, 5], [], [3]]


def as_text(path, sequences):
    path.write_text("".join(" ".join(map(str, sequence)) + "\n" for sequence in sequences))
    return path


def as_offsets(path, sequences):
    offsets = np.cumsum([0, *map(len, sequences)])
    np.savez(path, ids=np.array(sum(sequences, []), dtype=np.int64), offsets=offsets)
    return path


def as_rows(path, sequences):
    rows = np.full((len(sequences), max(map(len, sequences)) + 1), -1, dtype=np.int32)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    np.save(path, rows)
    return path


FORMS = {"text.txt": as_text, "flat.npz": as_offsets, "rows.npy": as_rows}


def folder(tmp_path, source, name="folder", **options):
    return prepare(tmp_path / name, {"train": [source]}, Options(ids=True, **options))


def sequences_of(data, split="train"):
    tokens = data.tokens(split)
    words = [data.vocabulary.words[id] for id in tokens.ids.tolist()]
    offsets = tokens.offsets.tolist()
    rows = [words[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    assert all(row[-1] == data.vocabulary.words[END] for row in rows)
    return [row[:-1] for row in rows]


@pytest.mark.parametrize("form", FORMS)
def test_all_formats_match_text(tmp_path, form):
    text = as_text(tmp_path / "same.txt", SEQUENCES)
    expected = prepare(tmp_path / "text", {"train": [text]}, Options(min_count=1))
    found = folder(tmp_path, FORMS[form](tmp_path / form, SEQUENCES))
    assert sequences_of(found) == [list(map(str, sequence)) for sequence in SEQUENCES]
    assert found.vocabulary == expected.vocabulary
    assert found.vocabulary.counts.tolist() == expected.vocabulary.counts.tolist()
    ours, theirs = found.split("train"), expected.split("train")
    for field in ("sha256", "words_sha256", "bytes", "types", "unknown", "words", "sentences"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert found.metadata.options.ids and found.metadata.options.min_count == 1


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=5), min_size=1, max_size=8).filter(any),
    st.integers(1, 6),
    st.sampled_from(["flat.npz", "rows.npy"]),
)
def test_sequences_are_independent_of_chunk_size(tmp_path_factory, sequences, size, form):
    place = tmp_path_factory.mktemp("cut")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "_CHUNK_IDS", size)
        found = folder(place, FORMS[form](place / form, sequences))
    assert sequences_of(found) == [list(map(str, sequence)) for sequence in sequences]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([4, 4, 2], dtype=np.uint16), [["4", "4", "2"]]),
        ([[-1, 4, -1, 2], [-1, -1, -1, 9]], [["4", "2"], ["9"]]),  # padding anywhere
        ([2**62, 5, 2**62, 2**40], [[str(2**62), "5", str(2**62), str(2**40)]]),
    ],
)
def test_arrays(tmp_path, array, expected):
    np.save(tmp_path / "a.npy", np.array(array))
    assert sequences_of(folder(tmp_path, tmp_path / "a.npy")) == expected


def test_ids_are_sorted_by_count(tmp_path):
    source = as_text(tmp_path / "ids.txt", [[9, 9, 9, 1, 1, 5]])
    assert folder(tmp_path, source).vocabulary.words[4:7] == ["9", "1", "5"]
    some = folder(tmp_path, source, "some", min_count=2)
    assert sequences_of(some) == [["9", "9", "9", "1", "1", "<unk>"]]


@pytest.mark.parametrize("form", FORMS)
def test_names_replace_ids(tmp_path, form):
    names = tmp_path / "names.txt"
    names.write_text("zero\none item\r\ntwo\n")
    source = FORMS[form](tmp_path / form, [[1, 0], [1, 2]])
    found = folder(tmp_path, source, names=names)
    assert sequences_of(found) == [["one_item", "zero"], ["one_item", "two"]]
    assert found.metadata.options.names == str(names)


class Evil:
    def __reduce__(self):
        return os.system, ("touch owned",)


def write_pickle(path):
    path.write_bytes(pickle.dumps(Evil()))


def write_objects(path):
    np.save(path, np.array([Evil(), 1], dtype=object), allow_pickle=True)


def write_open_header(path):
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,".ljust(118) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("a.npy", lambda path: np.save(path, np.array([1.5, 2])), "type float64.*integers"),
        ("a.npy", lambda path: np.save(path, np.array([3, -1, 4])), "contains -1; ids"),
        ("a.npy", lambda path: np.save(path, np.zeros((1, 2, 2), int)), "3 dimensions"),
        ("a.npy", lambda path: np.save(path, np.zeros(0, int)), "empty"),
        ("a.npy", lambda path: np.save(path, np.full((2, 3), -1)), "no words in the train split"),
        ("a.npy", write_pickle, "not a NumPy array"),
        ("a.npy", write_objects, "not a NumPy array"),
        ("a.npy", lambda path: path.write_bytes(b""), "not a NumPy array"),
        ("a.npy", write_open_header, "not a NumPy array"),
        ("a.npz", lambda path: np.savez(path, ids=np.arange(3)), "offsets is not a file"),
        ("a.npz", lambda path: path.write_bytes(b"PK\x03\x04 cut"), "not a NumPy array"),
        (
            "a.npz",
            lambda path: np.savez(path, ids=np.arange(3), offsets=np.array([0, 2])),
            "offsets must be sorted, from 0 to 3",
        ),
        (
            "a.npz",
            lambda path: np.savez(path, ids=np.arange(3), offsets=np.array([], dtype=int)),
            "offsets must be sorted, from 0 to 3",
        ),
        (
            "a.npz",
            lambda path: np.savez(path, ids=np.arange(3), offsets=np.array([0, 2, 1, 3])),
            "offsets must be sorted",
        ),
        (
            "a.npz",
            lambda path: np.savez(path, ids=np.array([1, 2, -3]), offsets=np.array([0, 2, 3])),
            "contains -3; ids",
        ),
        ("a.txt", lambda path: path.write_text("1 2\n3 -4\n"), "a.txt: line 2: '-4' is not an id"),
        ("a.txt", lambda path: path.write_text("007\n"), "'007' is not an id.* zeros"),
        ("a.txt", lambda path: path.write_text(""), "empty"),
        ("a.txt", lambda path: path.write_text("\n\n"), "no words in the train split"),
    ],
)
def test_rejects_files_that_are_not_id_sequences(tmp_path, monkeypatch, name, write, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name)
    with pytest.raises(ValueError, match=message) as error:
        folder(tmp_path, tmp_path / name)
    assert name in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]  # nothing made, nothing run


def test_rejects_a_pipe_of_words(tmp_path):
    read, write = os.pipe()
    os.write(write, b"1 x 2\n")
    os.close(write)
    with pytest.raises(ValueError, match=f"^/dev/fd/{read}: 'x' is not an id"):
        folder(tmp_path, f"/dev/fd/{read}")
    os.close(read)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n\nb\n", "line 2: the name of id 1 is missing"),
        ("a\nb\na\n", "line 3: 'a' is already used in line 1"),
        ("a b\na_b\n", "line 2: 'a_b' is already used in line 1"),
        ("a\n<unk>\n", "line 2: <unk> is reserved"),
        ("", "line 1: the name of id 0 is missing"),
    ],
)
def test_rejects_invalid_names(tmp_path, text, message):
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_names(str(path))


def test_rejects_ids_without_a_name(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("a\nb\n")
    source = as_text(tmp_path / "ids.txt", [[0, 2]])
    with pytest.raises(ValueError, match="--names: has 2 lines, but id 2 needs line 3"):
        folder(tmp_path, source, names=names)


def test_rejects_text_mixed_with_arrays(tmp_path):
    both = [as_text(tmp_path / "a.txt", [[1]]), as_rows(tmp_path / "b.npy", [[1]])]
    with pytest.raises(ValueError, match=r"a.txt and .*b.npy: text and arrays in one split"):
        prepare(tmp_path / "d", {"train": both}, Options(ids=True))


def zipflm(*arguments):
    command = [sys.executable, "-m", "zipflm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_ids_command(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("zero\none\ntwo\n")
    train, more = as_rows(tmp_path / "a.npy", [[1, 2]]), as_offsets(tmp_path / "b.npz", [[2, 0]])
    valid = as_text(tmp_path / "v.txt", [[2, 2]])
    done = zipflm("prepare", "--ids", train, "--ids", more, "--valid", valid,
                  "--names", names, "--out", tmp_path / "d")  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = DataFolder.open(tmp_path / "d")
    assert sequences_of(data) == [["one", "two"], ["two", "zero"]]
    assert sequences_of(data, "valid") == [["two", "two"]]
