"""Several token files that read as one."""

import errno
import json
import mmap
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_data import make_folder
from training_runs import assert_same, run, weights

from zipflm.config import Blocks
from zipflm.data import shards
from zipflm.data.batches import Batches
from zipflm.data.folder import DataFolder
from zipflm.data.loader import Loader
from zipflm.data.shards import ShardedIds, ShardedTokens, ShardWriter, open_tokens, shard_names
from zipflm.data.tokens import TokenArray
from zipflm.evaluation.evaluate import evaluate

HASH = "ab" * 32
SENTENCES = st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), min_size=1, max_size=20)


def write(path, sentences, shard_tokens, at_once=3):
    with ShardWriter(path, 300, HASH, shard_tokens) as writer:
        for first in range(0, len(sentences), at_once):
            part = TokenArray.of(sentences[first : first + at_once])
            writer.write(part.ids, part.offsets[1:])
    return [path.with_name(name) for name in writer.files]


@settings(max_examples=50, deadline=None)
@given(SENTENCES, st.integers(1, 40), st.integers(1, 7))
def test_shards_hold_whole_sentences_up_to_their_size_and_read_as_one(
    tmp_path_factory, sentences, shard_tokens, at_once
):
    folder, wanted = tmp_path_factory.mktemp("shards"), TokenArray.of(sentences)
    paths = write(folder / "x.tokens", sentences, shard_tokens, at_once)
    assert sorted(folder.iterdir()) == sorted(paths)
    tokens = open_tokens(paths)
    assert (len(tokens), tokens.num_sentences) == (len(wanted), len(sentences))
    assert tokens.ids.tolist() == wanted.ids.tolist()
    assert tokens.offsets.tolist() == wanted.offsets.tolist()
    files = [open_tokens([path]) for path in paths]
    assert all(len(file) <= shard_tokens or file.num_sentences == 1 for file in files)
    for file, following in zip(files, files[1:], strict=False):  # none is less full than it can be
        assert len(file) + int(following.offsets[1]) > shard_tokens


def test_a_split_that_fits_is_one_file_of_the_plain_name(tmp_path):
    assert write(tmp_path / "x.tokens", [[5, 2], [2]], 3) == [tmp_path / "x.tokens"]
    paths = write(tmp_path / "y.tokens", [[5, 2], [2]], 2)
    assert [path.name for path in paths] == ["y.000.tokens", "y.001.tokens"]
    assert shard_names("a.b.tokens", 1001)[-1] == "a.b.1000.tokens"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_ids_index_like_one_array(lengths, data):
    whole = np.arange(sum(lengths), dtype=np.uint16) * 3
    ids = ShardedIds(np.split(whole, np.cumsum(lengths)[:-1]))
    n = len(whole)
    bound = st.none() | st.integers(-n - 2, n + 2)
    cut = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert ids[cut].tolist() == whole[cut].tolist()
    place = data.draw(st.integers(-n, n - 1))
    assert ids[place] == whole[place]
    rows = data.draw(st.lists(st.lists(st.integers(-n, n - 1), min_size=3, max_size=3)))
    places = np.array(rows, dtype=np.int64).reshape(-1, 3)
    found = ids[places]
    assert np.array_equal(found, whole[places]) and found.dtype == whole.dtype
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    assert np.array_equal(ids[mask], whole[mask])


def test_ids_compute_like_one_array():
    whole = np.arange(10, dtype=np.uint8)
    ids = ShardedIds([whole[:4], whole[4:]])
    assert (ids == 5).tolist() == (whole == 5).tolist()
    assert np.count_nonzero(ids > 7) == 2 and (5 + ids)[9] == 14
    assert np.array_equal(np.asarray(ids), whole) and list(ids) == list(whole)
    assert np.array_equal(np.arange(20)[ids], whole)
    assert np.bincount(ids).tolist() == [1] * 10
    assert ids.astype(np.int64).dtype == np.int64
    assert (ids.shape, ids.ndim, ids.size, ids.nbytes) == ((10,), 1, 10, 10)
    for wrong in (10, -11, np.array([3, 10])):
        with pytest.raises(IndexError, match="of 10"):
            ids[wrong]
    with pytest.raises(IndexError, match="a mask of shape"):
        ids[np.array([True])]


def test_offsets_index_across_shards(tmp_path):
    tokens = open_tokens(write(tmp_path / "x.tokens", [[5, 2], [6, 2], [7, 2]], 2))
    assert tokens.ids[tokens.offsets[:-1]].tolist() == [5, 6, 7]


def test_more_shards_than_can_be_open_are_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_SHARDS", 3)
    assert len(write(tmp_path / "x.tokens", [[5, 2]] * 3, 2)) == 3
    with pytest.raises(ValueError, match="--shard-size 2: y.tokens would be more than 3 files"):
        write(tmp_path / "y.tokens", [[5, 2]] * 4, 2)


def test_a_shard_that_cannot_be_begun_is_that_error_and_no_other(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        with ShardWriter(tmp_path / "x.tokens", 300, HASH, 2) as writer:
            monkeypatch.setattr(shards, "TokenWriter", refuse)
            writer.write(np.array([5, 2, 6, 2]), np.array([2, 4]))


def test_a_slice_within_a_shard_is_a_view_of_its_map(tmp_path):
    paths = write(tmp_path / "x.tokens", [[5, 6, 2]] * 4, 6)
    tokens = ShardedTokens(paths)
    assert isinstance(tokens.ids[6:9].base.base, mmap.mmap)
    assert tokens.ids[4:8].tolist() == [6, 2, 5, 6]


def test_parts_of_sentences_are_refused(tmp_path):
    with ShardWriter(tmp_path / "x.tokens", 300, HASH) as writer:
        with pytest.raises(ValueError, match="whole sentences"):
            writer.write(np.array([5, 6]), np.array([1]))
        writer.write(np.array([5]), np.array([1]))


def test_shards_of_different_vocabularies_are_refused_by_name(tmp_path):
    with ShardWriter(tmp_path / "y.tokens", 70_000, HASH) as writer:
        writer.write(np.array([5]), np.array([1]))
    write(tmp_path / "x.tokens", [[5]], 10)
    with pytest.raises(ValueError, match=r"y\.tokens: made for 70000 ids, but .*x\.tokens for 300"):
        ShardedTokens([tmp_path / "x.tokens", tmp_path / "y.tokens"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same text in one file a split, and in many."""
    root = tmp_path_factory.mktemp("pair")
    return make_folder(root, "whole"), make_folder(root, "cut", shard_tokens=137)


def test_a_folder_of_shards_says_so_and_is_sealed(pair):
    whole, cut = pair
    assert whole.split("train").shards == 1 and whole.split("train").files == ("train.tokens",)
    names = cut.split("train").files
    assert len(names) == cut.split("train").shards > 5 and names[0] == "train.000.tokens"
    assert not (cut.path / "train.tokens").exists()
    sealed = json.loads((cut.path / "checksums.json").read_text())
    assert set(names) < set(sealed)
    cut.verify()
    facts, others = whole.split("train"), cut.split("train")
    for field in ("tokens", "words", "sentences", "unknown", "bytes", "types"):
        assert getattr(facts, field) == getattr(others, field)
    # What tells whether two folders hold the same tokens, or the same words.
    assert (facts.sha256, facts.words_sha256) == (others.sha256, others.words_sha256)


@pytest.mark.parametrize("mode", ["none", "complete", "sentence"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_of_shards_are_those_of_one_file(pair, mode, shuffle):
    plans = [
        Batches(
            data.tokens("train"),
            Blocks(break_mode=mode, block=32, context=8 if mode == "none" else 0),
            max_tokens=256,
            shuffle=shuffle,
        )
        for data in pair
    ]
    for ours, theirs in zip(*(Loader(plan, "cpu").epoch(1) for plan in plans), strict=True):
        assert all(map(np.array_equal, ours.tensors, theirs.tensors))


def test_training_and_evaluation_on_shards_are_those_on_one_file(pair, tmp_path):
    for data, name in zip(pair, ("whole", "cut"), strict=True):
        run(data, tmp_path / name, "training.max_updates=6", "training.validate_share=0.5")
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    results = [evaluate(tmp_path / "whole", data=data.path, split="valid") for data in pair]
    ours, theirs = (result.scores for result in results)
    assert np.array_equal(ours.nll, theirs.nll)
    assert ours.protocol == theirs.protocol and ours.protocol.eos > 0
    for data, name in zip(reversed(pair), ("whole", "cut"), strict=True):  # each on the other's
        run(data, tmp_path / name, "training.max_updates=8", resume=True)
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


@pytest.fixture
def copy(pair, tmp_path):
    return shutil.copytree(pair[1].path, tmp_path / "copy")


def test_a_missing_shard_is_named(copy):
    (copy / "train.003.tokens").unlink()
    data = DataFolder.open(copy)
    with pytest.raises(OSError, match=r"train\.003\.tokens"):
        data.tokens("train")
    with pytest.raises(ValueError, match=r"train\.003\.tokens: missing"):
        data.verify("train")
    data.verify("valid")


def test_a_changed_or_exchanged_shard_is_named(copy):
    data = bytearray((copy / "train.002.tokens").read_bytes())
    data[200] ^= 1
    (copy / "train.002.tokens").write_bytes(data)
    with pytest.raises(ValueError, match=r"train\.002\.tokens: damaged"):
        DataFolder.open(copy).verify("train")


def test_a_shard_left_out_of_the_sums_is_noticed(copy):
    sums = json.loads((copy / "checksums.json").read_text())
    sums["train.002.tokens"] = sums["train.001.tokens"]
    (copy / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(ValueError, match=r"checksums\.json: damaged; .* disagree on train\.tokens"):
        DataFolder.open(copy)


def test_a_shard_that_is_cut_while_it_is_in_use_is_named(copy):
    tokens = DataFolder.open(copy).tokens("train")
    tokens.require_whole()
    os.truncate(copy / "train.001.tokens", 140)
    with pytest.raises(ValueError, match=r"train\.001\.tokens: changed while it was in use"):
        tokens.require_whole()
