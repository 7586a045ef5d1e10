"""What a data folder says about the text of a split."""

from pathlib import Path

import pytest

from zipflm.data.prepare import Options, prepare

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
TEXTS = {split: [GOLDEN / "text" / f"{split}.txt"] for split in ("train", "valid", "test")}


def text_hash(folder, split="test"):
    return folder.facts.splits[split].words_sha256


def test_the_same_text_has_the_same_hash_whatever_its_ids(tmp_path):
    words = prepare(tmp_path / "words", TEXTS)
    pieces = prepare(tmp_path / "pieces", TEXTS, Options(bpe=50), processes=2)
    assert all(text_hash(words, split) == text_hash(pieces, split) for split in TEXTS)


@pytest.mark.parametrize(
    "other",
    ["a c b\nd e\n", "a b c\ne d\n", "d e\na b c\n", "a b c d\ne\n", "a b c\nd e\n\n"],
)
def test_another_order_of_words_or_lines_is_another_text(tmp_path, other):
    folders = []
    for name, text in (("one", "a b c\nd e\n"), ("other", other)):
        (tmp_path / f"{name}.txt").write_text(text)
        splits = {"train": TEXTS["train"], "test": [tmp_path / f"{name}.txt"]}
        folders.append(prepare(tmp_path / name, splits))
    assert text_hash(folders[0]) != text_hash(folders[1])


def test_chunks_do_not_enter_the_hash_of_a_text(tmp_path, monkeypatch):
    whole = prepare(tmp_path / "whole", TEXTS)
    monkeypatch.setattr("zipflm.data.engine.CHUNK_BYTES", 1000)
    assert TEXTS["train"][0].stat().st_size > 2 * 1000
    assert text_hash(prepare(tmp_path / "cut", TEXTS), "train") == text_hash(whole, "train")


@pytest.mark.parametrize("bpe", [None, 5])
def test_words_that_read_unk_are_not_out_of_vocabulary(tmp_path, bpe):
    (tmp_path / "train.txt").write_text("ab b c ab b c\n")
    (tmp_path / "test.txt").write_text("ab <unk> b\n\u00e9 <unk>\n")
    splits = {name: [tmp_path / f"{name}.txt"] for name in ("train", "test")}
    options = Options(min_count=1) if bpe is None else Options(bpe=bpe)
    facts = prepare(tmp_path / "d", splits, options).facts.splits["test"]
    assert (facts.unknown, facts.out_of_vocabulary) == (3, 1)


def test_a_vocabulary_with_an_unk_of_its_own_counts_what_it_lacks(tmp_path):
    """fairseq's dictionaries may name `<unk>` again, and then a text's own `<unk>` is known."""
    (tmp_path / "dict.txt").write_text("the 10\n<unk> 5 #fairseq:overwrite\ncat 2\n")
    (tmp_path / "test.txt").write_text("the <unk> cat <unk> dog\n")
    options = Options(vocabulary=tmp_path / "dict.txt")
    facts = prepare(tmp_path / "d", {"test": [tmp_path / "test.txt"]}, options).facts.splits["test"]
    assert (facts.unknown, facts.out_of_vocabulary) == (1, 1)
