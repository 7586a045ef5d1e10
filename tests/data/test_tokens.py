import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.tokens import TokenArray, TokenFile, TokenWriter, smallest_type

HASH = "ab" * 32


def write(path, pieces, size=300):
    with TokenWriter(path, size, HASH) as writer:
        for ids, ends in pieces:
            writer.write(np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int64))
    return path


@given(st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), max_size=9))
def test_what_is_written_is_read(tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("tokens") / "x.tokens"
    write(path, [(sentence, [len(sentence)]) for sentence in sentences])
    tokens, wanted = TokenFile(path), TokenArray.of(sentences)
    assert tokens.ids.tolist() == wanted.ids.tolist()
    assert tokens.offsets.tolist() == wanted.offsets.tolist()
    assert (len(tokens), tokens.num_sentences) == (len(wanted), len(sentences))
    assert tokens.sentence_starts.tolist() == wanted.offsets[:-1].tolist()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(256, np.uint8), (257, np.uint16), (1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)],
)
def test_type_is_the_smallest_that_holds_every_id(tmp_path, size, dtype):
    assert smallest_type(size) is dtype
    tokens = TokenFile(write(tmp_path / "x.tokens", [([size - 1], [1])], size))
    assert tokens.ids.dtype == dtype
    assert tokens.ids[0] == size - 1


def test_ids_are_a_view_that_cannot_be_written(tmp_path):
    tokens = TokenFile(write(tmp_path / "x.tokens", [([1, 2], [2])]))
    assert isinstance(tokens.ids, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens.ids[0] = 5


def test_every_truncation_is_noticed(tmp_path):
    data = write(tmp_path / "x.tokens", [([5, 2, 7, 2], [2, 4])]).read_bytes()
    cut = tmp_path / "cut.tokens"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        with pytest.raises(ValueError, match="cut short"):
            TokenFile(cut)
    cut.write_bytes(data + b"x")
    with pytest.raises(ValueError, match="damaged"):
        TokenFile(cut)


def test_foreign_and_future_files_are_refused(tmp_path):
    path = tmp_path / "x.tokens"
    path.write_bytes(b"MMIDIDX\0\0" + bytes(400))
    with pytest.raises(ValueError, match="not a zipflm token file"):
        TokenFile(path)
    data = bytearray(write(path, [([5, 2], [2])]).read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(ValueError, match="version 9"):
        TokenFile(path)


def test_other_vocabulary_is_refused_with_both_hashes(tmp_path):
    tokens = TokenFile(write(tmp_path / "x.tokens", [([5, 2], [2])]))
    tokens.require_vocabulary(HASH)
    with pytest.raises(ValueError, match=f"{HASH}.*{'cd' * 32}"):
        tokens.require_vocabulary("cd" * 32)


def test_an_interrupted_writer_leaves_no_readable_file(tmp_path):
    path = tmp_path / "x.tokens"
    with pytest.raises(KeyboardInterrupt), TokenWriter(path, 300, HASH) as writer:
        writer.write(np.array([5, 2]), np.array([2]))
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="not a zipflm token file"):
        TokenFile(path)
