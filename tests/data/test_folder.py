import json
import random
import shutil

import pytest

from zipflm.data.folder import FORMAT, DataFolder, read_metadata
from zipflm.settings import to_dict

FILES = ("checksums.json", "data.json", "bpe.codes", "vocabulary.txt", "train.tokens")
FILES += ("valid.tokens",)


@pytest.fixture
def pieces(bpe_data, tmp_path):
    return shutil.copytree(bpe_data.path, tmp_path / "pieces")


def test_open_folder_properties(word_data, bpe_data):
    assert (word_data.unit, bpe_data.unit) == ("word", "bpe")
    assert word_data.splits == ("train", "valid")
    assert len(word_data.tokens("valid")) == word_data.split("valid").tokens
    assert word_data.split("train").words_sha256 == bpe_data.split("train").words_sha256
    word_data.verify()
    bpe_data.verify("valid")


def test_rejects_token_file_of_another_vocabulary(tmp_path, word_data, other_data):
    copy = shutil.copytree(word_data.path, tmp_path / "copy")
    shutil.copy(other_data.path / "train.tokens", copy / "train.tokens")
    folder = DataFolder.open(copy)
    hashes = f"{other_data.vocabulary.hash}.*{word_data.vocabulary.hash}"
    with pytest.raises(ValueError, match=hashes):
        folder.tokens("train")
    folder.tokens("valid")


def test_ends_word_for_pieces(bpe_data):
    ends = dict(zip(bpe_data.vocabulary.words, bpe_data.ends_word.tolist(), strict=True))
    assert ends["</s>"] and ends["<unk>"]
    assert not all(ends.values())
    assert all(end != word.endswith("@@") for word, end in ends.items())


def test_missing_split_error_lists_existing_splits(word_data):
    with pytest.raises(ValueError, match="no test split, only train, valid; prepare the data"):
        word_data.tokens("test")


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_detected(pieces, name):
    path, draw = pieces / name, random.Random(name)
    data = path.read_bytes()
    places = [draw.randrange(8 * len(data)) for _ in range(60)]
    # Always include both ends of a file: its header, the braces of JSON.
    for place in [*range(16), *range(8 * len(data) - 16, 8 * len(data)), *places]:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError) as error:
            DataFolder.open(pieces).verify()
            pytest.fail(f"bit {place} of {name} was not noticed")
        # A damaged checksum looks like a damaged file, so both are named.
        named = str(path) if name != "checksums.json" else name
        assert named in str(error.value), place
        assert "again" in str(error.value)
    path.write_bytes(data)
    DataFolder.open(pieces).verify()


@pytest.mark.parametrize("name", FILES)
def test_rejects_missing_or_empty_file(pieces, name):
    for change in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        change(pieces / name)
        with pytest.raises(ValueError, match=f"{name}"):
            DataFolder.open(pieces).verify()


def test_verifies_only_named_splits(pieces):
    (pieces / "train.tokens").write_bytes(b"damaged")
    folder = DataFolder.open(pieces)
    folder.verify("valid")
    with pytest.raises(ValueError, match="train.tokens: damaged.*prepare the data again"):
        folder.verify("valid", "train")


def test_rejects_folder_without_data_json(tmp_path):
    with pytest.raises(ValueError, match=f"^{tmp_path}: not a data folder .*zipflm prepare"):
        read_metadata(tmp_path)


def changed(metadata, path, value):
    """Return the metadata as a dict with one value replaced, or removed if it is Ellipsis."""
    values = to_dict(metadata)
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
        ("unit", "letters", "unit='letters': must be 'word' or 'bpe'"),
        ("splits.valid.file", ..., "splits.valid.file: missing"),
        ("splits.valid.tokens", "many", "splits.valid.tokens='many': must be a valid integer"),
        ("splits.valid.token", 3, "unknown key splits.valid.token;"),
        ("bpe", {"file": "bpe.codes"}, "bpe.merges: missing"),
        ("format", 1, f"format 1, but this release reads {FORMAT}"),
        ("format", ..., f"format None, but this release reads {FORMAT}"),
    ],
)
def test_invalid_data_json_error_names_field(word_data, tmp_path, path, value, message):
    (tmp_path / "data.json").write_text(json.dumps(changed(word_data.metadata, path, value)))
    with pytest.raises(ValueError) as error:
        read_metadata(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'data.json'}: {message}")
    assert str(error.value).endswith("; prepare the data again")
