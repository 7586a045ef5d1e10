"""A data folder that is open is whole; every change of a file is noticed and named."""

import json
import random
import shutil

import pytest

from zipflm.data.folder import FORMAT, DataFolder, SplitFacts, read_facts
from zipflm.data.vocabulary import Vocabulary
from zipflm.settings import from_dict, to_dict
from zipflm.storage import seal

FILES = ("checksums.json", "data.json", "bpe.codes", "vocabulary.txt", "train.tokens")
FILES += ("valid.tokens",)


@pytest.fixture
def copy(word_data, tmp_path):
    """A folder to spoil."""
    return shutil.copytree(word_data.path, tmp_path / "copy")


@pytest.fixture
def pieces(bpe_data, tmp_path):
    return shutil.copytree(bpe_data.path, tmp_path / "pieces")


def test_it_says_what_it_holds(word_data, bpe_data):
    assert (word_data.unit, bpe_data.unit) == ("word", "bpe")
    assert word_data.splits == ("train", "valid")
    assert len(word_data.tokens("valid")) == word_data.split("valid").tokens
    assert word_data.split("train").words_sha256 == bpe_data.split("train").words_sha256
    word_data.verify()
    bpe_data.verify("valid")


def test_a_vocabulary_put_in_place_of_another_is_refused_with_both_hashes(copy, word_data):
    """Whoever did it made the checksums fit, but data.json knows better."""
    other = Vocabulary.from_counts({"a": 3})
    other.save(copy / "vocabulary.txt")
    seal(copy)
    with pytest.raises(ValueError, match=f"{other.hash}.*{word_data.vocabulary.hash}"):
        DataFolder.open(copy)


def test_a_token_file_of_another_vocabulary_is_refused_with_both_hashes(
    copy, word_data, other_data
):
    shutil.copy(other_data.path / "train.tokens", copy / "train.tokens")
    folder = DataFolder.open(copy)
    hashes = f"{other_data.vocabulary.hash}.*{word_data.vocabulary.hash}"
    with pytest.raises(ValueError, match=hashes):
        folder.tokens("train")
    folder.tokens("valid")


def test_codes_put_in_place_of_others_are_refused_with_both_hashes(pieces, bpe_data):
    lines = (pieces / "bpe.codes").read_text().splitlines()
    (pieces / "bpe.codes").write_text("\n".join(lines[:-1]) + "\n")
    seal(pieces)
    with pytest.raises(ValueError, match=f"bpe.codes: .*data.json says {bpe_data.codes.hash}"):
        _ = DataFolder.open(pieces).codes


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


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_anywhere_is_refused_with_the_files_name(pieces, name):
    path, draw = pieces / name, random.Random(name)
    data = path.read_bytes()
    places = [draw.randrange(8 * len(data)) for _ in range(60)]
    # Both ends of every file as well: a header, the braces of JSON.
    for place in [*range(16), *range(8 * len(data) - 16, 8 * len(data)), *places]:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError) as error:
            DataFolder.open(pieces).verify()
            pytest.fail(f"bit {place} of {name} was not noticed")
        # A damaged checksum says the same as a damaged file, and both are named then.
        named = str(path) if name != "checksums.json" else name
        assert named in str(error.value), place
        assert "again" in str(error.value)
    path.write_bytes(data)
    DataFolder.open(pieces).verify()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_empty_file_is_refused_with_its_name(pieces, name):
    for change in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        change(pieces / name)
        with pytest.raises(ValueError, match=f"{name}"):
            DataFolder.open(pieces).verify()


def test_only_the_splits_that_are_named_are_verified(pieces):
    (pieces / "train.tokens").write_bytes(b"damaged")
    folder = DataFolder.open(pieces)
    folder.verify("valid")
    with pytest.raises(ValueError, match="train.tokens: damaged.*prepare the data again"):
        folder.verify("valid", "train")


def test_a_folder_without_facts_is_no_data_folder(tmp_path):
    with pytest.raises(ValueError, match=f"^{tmp_path}: no data folder .*make one: zipflm prepare"):
        read_facts(tmp_path)


def changed(facts, path, value):
    """The facts as a dictionary, with one value replaced, or taken out where it is Ellipsis."""
    values = to_dict(facts)
    *parents, last = path.split(".")
    place = values
    for name in parents:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("unit", "letters", "unit='letters': choose from word, bpe"),
        ("splits.valid.file", ..., "splits.valid.file: missing"),
        ("splits.valid.tokens", "many", "splits.valid.tokens='many': expected a whole number"),
        ("splits.valid.token", 3, "unknown key splits.valid.token: did you mean"),
        ("bpe", {"file": "bpe.codes"}, "bpe.merges: missing"),
        ("format", 1, f"format 1, this release reads {FORMAT}"),
        ("format", ..., f"format None, this release reads {FORMAT}"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(word_data, tmp_path, path, value, message):
    (tmp_path / "data.json").write_text(json.dumps(changed(word_data.facts, path, value)))
    with pytest.raises(ValueError) as error:
        read_facts(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'data.json'}: {message}")
    assert str(error.value).endswith("; prepare the data again")


@pytest.mark.parametrize("name", ["../valid.tokens", "/etc/passwd", "", ".."])
def test_a_token_file_lies_in_the_folder(word_data, name):
    values = to_dict(word_data.split("valid")) | {"file": name}
    with pytest.raises(ValueError, match="^file=.*: names no file of the folder"):
        from_dict(SplitFacts, values)
