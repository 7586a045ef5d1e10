"""A damaged data folder reads the same as before, or is rejected."""

import json
import os
import shutil

import pytest
from fuzz.cases import limited_time, tried
from fuzz.folders import Folder, require_named
from fuzz.mutations import altered_json, altered_lines, damaged, replace_file

from zipflm.config import Blocks
from zipflm.data.batches import Batches
from zipflm.data.bpe import Codes, join
from zipflm.data.folder import DataFolder
from zipflm.data.vocabulary import SPECIALS, Vocabulary
from zipflm.storage import seal

FILES = ["data.json", "checksums.json", "vocabulary.txt", "train.tokens", "valid.tokens"]
BLOCKS = Blocks(break_mode="complete", block=16)


def numbers(path):
    """Read everything in a data folder."""
    folder = DataFolder.open(path)
    folder.verify()
    found = [folder.metadata, folder.vocabulary.words, folder.vocabulary.counts.tolist()]
    found.append(folder.ends_word.tolist())
    found.append(folder.codes and folder.codes.merges)
    for split in folder.splits:
        tokens = folder.tokens(split)
        batches = Batches(tokens, BLOCKS, max_tokens=64, shuffle=False)
        batch = batches.batch(0, len(batches) - 1)
        found += [tokens.ids.tolist(), tokens.offsets.tolist(), batch.words.tolist()]
        found += [batch.targets.tolist(), batch.scored.tolist()]
    return found


@pytest.fixture
def folders(word_data, bpe_data, tmp_path):
    words = shutil.copytree(word_data.path, tmp_path / "words")
    pieces = shutil.copytree(bpe_data.path, tmp_path / "pieces")
    made = [Folder(words, FILES), Folder(pieces, [*FILES, "bpe.codes"])]
    return {folder.path: (folder, numbers(folder.path)) for folder in made}


def changed(rng, name, data):
    if name.endswith(".json") and rng.random() < 0.7:
        return altered_json(rng, data)
    if name in ("vocabulary.txt", "bpe.codes") and rng.random() < 0.5:
        return altered_lines(rng, data)
    return damaged(rng, data)


def attempt_on(folders):
    def attempt(rng):
        folder, before = folders[rng.choice(sorted(folders))]
        name = rng.choice(sorted(folder.originals))
        try:
            if rng.random() < 0.1:
                folder.touch(name)
                replace_file(rng, folder.path / name)
            else:
                folder.write(name, changed(rng, name, folder.originals[name]))
            assert numbers(folder.path) == before, f"{name}: other numbers"
            return "the same"
        except (ValueError, OSError) as error:
            require_named(error, folder.path, folder.originals)
            return "refused"
        finally:
            folder.restore()

    return attempt


@pytest.mark.timeout(0)  # --fuzz-seconds is the limit
def test_fuzz_data_folders(folders, fuzz_seed, fuzz_seconds):
    outcomes = tried(attempt_on(folders), fuzz_seed, fuzz_seconds)
    assert outcomes["refused"] > 20 and outcomes["the same"] > 0


def attempt_lists(rng, bpe_data, path):
    """Damage a vocabulary or codes file outside a folder."""
    name = rng.choice(["vocabulary.txt", "bpe.codes"])
    path = path / name
    path.write_bytes(changed(rng, name, (bpe_data.path / name).read_bytes()))
    try:
        if name == "vocabulary.txt":
            vocabulary = Vocabulary.load(path)
            assert tuple(vocabulary.words[:4]) == SPECIALS and (vocabulary.counts >= 0).all()
            assert len(vocabulary) == len(vocabulary.counts) == len(vocabulary.ends_word)
            again = path.with_name("again.txt")
            vocabulary.save(again)
            assert Vocabulary.load(again).words == vocabulary.words
        else:
            words = ["balance", "\u00e9t\u00e9", "x", "@@", "</w>", *bpe_data.vocabulary.words[:9]]
            assert [join(pieces) for pieces in Codes.load(path).split(words)] == words
        return "read"
    except ValueError as error:
        require_named(error, path, [name])
        return "refused"


@pytest.mark.timeout(0)
def test_fuzz_vocabularies_and_codes(bpe_data, tmp_path, fuzz_seed, fuzz_seconds):
    outcomes = tried(
        lambda rng: attempt_lists(rng, bpe_data, tmp_path), fuzz_seed, fuzz_seconds / 4
    )
    assert outcomes["refused"] > 10 and outcomes["read"] > 10


# --- Bugs found by fuzzing ---


@pytest.fixture
def copy(bpe_data, tmp_path):
    return shutil.copytree(bpe_data.path, tmp_path / "copy")


@pytest.mark.parametrize("name", ["checksums.json", "train.tokens", "data.json", "vocabulary.txt"])
def test_does_not_wait_for_pipes(copy, name):
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with limited_time(), pytest.raises(ValueError, match=f"{copy}.*{name}"):
        DataFolder.open(copy).tokens("train")


def test_rejects_checksums_without_codes(copy):
    sums = json.loads((copy / "checksums.json").read_text())
    del sums["bpe.codes"]
    (copy / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(ValueError, match="checksums.json: has no entry for bpe.codes"):
        DataFolder.open(copy)


def test_rejects_unknown_splits(copy):
    metadata = json.loads((copy / "data.json").read_text())
    metadata["splits"]["dev"] = metadata["splits"].pop("valid")
    (copy / "data.json").write_text(json.dumps(metadata))
    seal(copy)
    with pytest.raises(ValueError, match="data.json: splits"):
        DataFolder.open(copy)
