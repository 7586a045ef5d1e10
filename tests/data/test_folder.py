"""A data folder that is open is whole; every change of a file is noticed and named."""

import json
import mmap
import shutil

import pytest

from zipflm.checksums import seal
from zipflm.data.folder import DataFolder
from zipflm.data.tokens import TokenFile
from zipflm.data.vocabulary import Vocabulary


@pytest.fixture
def copy(word_data, tmp_path):
    """A folder to spoil."""
    return shutil.copytree(word_data.path, tmp_path / "copy")


@pytest.fixture
def pieces(bpe_data, tmp_path):
    return shutil.copytree(bpe_data.path, tmp_path / "pieces")


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_it_says_what_it_holds(word_data, bpe_data):
    assert (word_data.unit, bpe_data.unit) == ("word", "bpe")
    assert word_data.splits == ("train", "valid")
    assert len(word_data.tokens("valid")) == word_data.split("valid").tokens
    assert word_data.split("train").words_sha256 == bpe_data.split("train").words_sha256
    word_data.verify()
    bpe_data.verify("valid")


def test_what_is_no_data_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no data folder"):
        DataFolder.open(tmp_path)


def test_a_changed_vocabulary_is_refused(copy):
    Vocabulary.from_counts({"a": 3}).save(copy / "vocabulary.txt")
    with pytest.raises(ValueError, match="vocabulary.txt: damaged"):
        DataFolder.open(copy)


def test_a_vocabulary_put_in_place_of_another_is_refused_with_both_hashes(copy, word_data):
    """Whoever did it made the checksums fit, but data.json knows better."""
    other = Vocabulary.from_counts({"a": 3})
    other.save(copy / "vocabulary.txt")
    seal(copy)
    with pytest.raises(ValueError, match=f"{other.hash}.*{word_data.vocabulary.hash}"):
        DataFolder.open(copy)


@pytest.mark.parametrize("name", ["data.json", "vocabulary.txt", "bpe.codes"])
@pytest.mark.parametrize("change", ["a byte", "gone"])
def test_no_small_file_is_used_unchecked(pieces, name, change):
    if change == "gone":
        (pieces / name).unlink()
    else:
        (pieces / name).write_bytes((pieces / name).read_bytes() + b"\n")
    with pytest.raises(ValueError, match=f"{name}: (damaged|missing)|no data folder"):
        DataFolder.open(pieces)


def test_a_token_file_of_another_vocabulary_is_refused_with_both_hashes(
    copy, word_data, other_data
):
    shutil.copy(other_data.path / "train.tokens", copy / "train.tokens")
    folder = DataFolder.open(copy)
    hashes = f"{other_data.vocabulary.hash}.*{word_data.vocabulary.hash}"
    with pytest.raises(ValueError, match=hashes):
        folder.tokens("train")
    folder.tokens("valid")


def test_a_changed_token_file_is_noticed_by_whoever_asks(copy):
    flip_a_bit(copy / "train.tokens")
    folder = DataFolder.open(copy)
    folder.verify("valid")
    for splits in ((), ("train",), ("valid", "train")):
        with pytest.raises(ValueError, match="train.tokens: damaged; .*prepare the data again"):
            folder.verify(*splits)


def test_codes_put_in_place_of_others_are_refused_with_both_hashes(pieces, bpe_data):
    lines = (pieces / "bpe.codes").read_text().splitlines()
    (pieces / "bpe.codes").write_text("\n".join(lines[:-1]) + "\n")
    seal(pieces)
    with pytest.raises(ValueError, match=f"bpe.codes: .*data.json says {bpe_data.codes.hash}"):
        _ = DataFolder.open(pieces).codes


def test_codes_that_the_facts_do_not_know_are_refused(pieces):
    facts = json.loads((pieces / "data.json").read_text())
    (pieces / "data.json").write_text(json.dumps(facts | {"bpe": None}))
    seal(pieces)
    with pytest.raises(ValueError, match="data.json: unit='bpe': .* has bpe codes"):
        DataFolder.open(pieces)


def test_words_have_no_codes_and_every_id_ends_one(word_data):
    assert word_data.codes is None
    assert word_data.ends_word.all() and len(word_data.ends_word) == len(word_data.vocabulary)


def test_of_pieces_those_that_go_on_do_not_end_a_word(bpe_data):
    ends = dict(zip(bpe_data.vocabulary.words, bpe_data.ends_word.tolist(), strict=True))
    assert ends["</s>"] and ends["<unk>"]
    assert not all(ends.values())
    assert all(end != word.endswith("@@") for word, end in ends.items())


def test_a_split_that_is_not_there_is_named_with_those_that_are(word_data):
    with pytest.raises(ValueError, match="no split 'test'; it has train, valid; .* with --test"):
        word_data.tokens("test")
    with pytest.raises(ValueError, match="split 'dev': choose from train, valid, test"):
        word_data.split("dev")


def test_token_files_are_mapped_not_read(word_data):
    tokens = word_data.tokens("train")
    assert isinstance(tokens, TokenFile)
    assert isinstance(tokens.ids.base, mmap.mmap) and not tokens.ids.flags.owndata
