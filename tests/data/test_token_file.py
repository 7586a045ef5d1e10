import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.data.token_file import TokenArray, open_tokens, token_writer

HASH = "ab" * 32


def write(path, pieces, size=300):
    with token_writer(path, size, HASH) as append:
        for ids, ends in pieces:
            append(np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int64))
    return path


@given(st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), max_size=9))
def test_round_trip(tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("tokens") / "x.tokens"
    write(path, [(sentence, [len(sentence)]) for sentence in sentences])
    tokens, expected = open_tokens(path, HASH), TokenArray.of(sentences)
    assert tokens.ids.tolist() == expected.ids.tolist()
    assert tokens.offsets.tolist() == expected.offsets.tolist()
    assert len(tokens) == len(expected)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(256, np.uint8), (257, np.uint16), (1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)],
)
def test_uses_the_smallest_integer_type(tmp_path, size, dtype):
    tokens = open_tokens(write(tmp_path / "x.tokens", [([size - 1], [1])], size), HASH)
    assert tokens.ids.dtype == dtype
    assert tokens.ids[0] == size - 1


def test_views_are_read_only(tmp_path):
    tokens = open_tokens(write(tmp_path / "x.tokens", [([1, 2], [2])]), HASH)
    for view in (tokens.ids, tokens.offsets):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 5


def test_detects_any_truncation(tmp_path):
    data = write(tmp_path / "x.tokens", [([5, 2, 7, 2], [2, 4])]).read_bytes()
    cut = tmp_path / "cut.tokens"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        with pytest.raises(ValueError, match="truncated"):
            open_tokens(cut, HASH)
    cut.write_bytes(data + b"x")
    with pytest.raises(ValueError, match="damaged"):
        open_tokens(cut, HASH)


def test_rejects_other_files_and_versions(tmp_path):
    path = tmp_path / "x.tokens"
    path.write_bytes(b"MMIDIDX\0\0" + bytes(400))
    with pytest.raises(ValueError, match="not a zipflm token file"):
        open_tokens(path, HASH)
    data = bytearray(write(path, [([5, 2], [2])]).read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(ValueError, match="version 9"):
        open_tokens(path, HASH)


def test_interrupted_writer_leaves_no_valid_file(tmp_path):
    path = tmp_path / "x.tokens"
    with pytest.raises(KeyboardInterrupt), token_writer(path, 300, HASH) as append:
        append(np.array([5, 2]), np.array([2]))
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="not a zipflm token file"):
        open_tokens(path, HASH)


def test_replacing_the_file_does_not_affect_open_ones(tmp_path):
    path = write(tmp_path / "x.tokens", [([7, 2, 8, 9, 2, 2], [2, 5, 6])])
    blocks = Blocks(break_mode="none", block=4)
    plan = Batches(open_tokens(path, HASH), blocks, max_tokens=8, shuffle=False)
    before = plan.batch(0, 0)
    os.replace(write(tmp_path / "y.tokens", [([5, 2], [2])]), path)
    assert plan.batch(0, 0).targets.tolist() == before.targets.tolist()
