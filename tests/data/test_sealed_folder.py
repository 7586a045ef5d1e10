"""A data folder is refused if anything in it is not what `prepare` wrote."""

import random
import shutil

import pytest
from small_data import make_folder

from zipflm.data.folder import DataFolder

FILES = ("checksums.json", "data.json", "bpe.codes", "vocabulary.txt", "train.tokens")
FILES += ("valid.tokens",)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data"), "pieces", bpe=40)


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole.path, tmp_path / "copy")


def test_these_are_all_files_of_a_folder(whole):
    assert {path.name for path in whole.path.iterdir()} - {".verified.json"} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_anywhere_is_refused_with_the_files_name(copy, name):
    path, draw = copy / name, random.Random(name)
    data = path.read_bytes()
    places = [draw.randrange(8 * len(data)) for _ in range(300)]
    # Both ends of every file as well: a header, the braces of JSON.
    for place in [*range(64), *range(8 * len(data) - 64, 8 * len(data)), *places]:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError) as error:
            DataFolder.open(copy).verify()
            pytest.fail(f"bit {place} of {name} was not noticed")
        # A damaged checksum says the same as a damaged file, and both are named then.
        named = str(path) if name != "checksums.json" else name
        assert named in str(error.value), place
        assert "again" in str(error.value)
    path.write_bytes(data)
    DataFolder.open(copy).verify()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_empty_file_is_refused_with_its_name(copy, name):
    for change in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        change(copy / name)
        with pytest.raises(ValueError, match=f"{name}"):
            DataFolder.open(copy).verify()


def test_a_folder_without_checksums_is_to_be_prepared_again(copy):
    (copy / "checksums.json").unlink()
    with pytest.raises(ValueError) as error:
        DataFolder.open(copy)
    assert str(error.value) == (
        f"{copy}: has no checksums.json: it is not whole, or was made by an earlier version of "
        "zipflm; prepare the data again"
    )


def test_only_the_splits_that_are_named_are_verified(copy):
    (copy / "train.tokens").write_bytes(b"damaged")
    folder = DataFolder.open(copy)
    folder.verify("valid")
    with pytest.raises(ValueError, match="train.tokens: damaged.*prepare the data again"):
        folder.verify("valid", "train")
