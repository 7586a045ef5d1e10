import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.vocabulary import SPECIALS, Vocabulary

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
WORDS = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=4).filter(
    lambda word: word.split() == [word]
)


def golden_counts() -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in (GOLDEN / "text" / "train.txt").read_text(encoding="utf-8").split("\n"):
        for word in line.split():
            counts[word] = counts.get(word, 0) + 1
    return counts


@pytest.mark.parametrize(
    ("variant", "arguments"),
    [
        ("threshold3", {"min_count": 3}),
        ("nwords100", {"min_count": 1, "max_size": 100}),
    ],
)
def test_ids_match_fairseq(variant, arguments):
    golden = json.loads((GOLDEN / "dataset.json").read_text())["variants"][variant]
    vocabulary = Vocabulary.from_counts(golden_counts(), **arguments)
    assert vocabulary.words == golden["symbols"]
    assert vocabulary.counts[4:].tolist() == golden["counts_in_file"][4:]


def test_fairseq_dictionary_round_trip(tmp_path):
    vocabulary = Vocabulary.load(GOLDEN / "dict.txt")
    metadata = json.loads((GOLDEN / "dataset.json").read_text())["dictionary"]
    assert len(vocabulary) == metadata["size"]
    assert vocabulary.words[:8] == metadata["first8"]
    assert vocabulary.words[-4:] == metadata["last4"]
    assert vocabulary == Vocabulary.from_counts(golden_counts(), min_count=1)
    vocabulary.save(tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_bytes() == (GOLDEN / "dict.txt").read_bytes()


@given(st.dictionaries(WORDS, st.integers(1, 5), min_size=1))
def test_save_and_load(tmp_path_factory, counts):
    path = tmp_path_factory.mktemp("vocabulary") / "v.txt"
    vocabulary = Vocabulary.from_counts(counts, min_count=1)
    vocabulary.save(path)
    loaded = Vocabulary.load(path) if len(vocabulary) > 4 else vocabulary
    assert loaded.words == vocabulary.words
    assert loaded.counts.tolist() == vocabulary.counts.tolist()
    assert loaded.hash == vocabulary.hash
    assert len(vocabulary) % 8 == 0
    assert all(vocabulary.id(word) == i for i, word in enumerate(vocabulary.words))


def test_ties_are_sorted_by_code_point():
    vocabulary = Vocabulary.from_counts({"b": 3, "\u00e4": 3, "a": 3, "<unk>": 9}, min_count=1)
    assert vocabulary.words[:7] == [*SPECIALS, "a", "b", "\u00e4"]
    assert vocabulary.words[7:] == ["madeupword0000"]
    assert vocabulary.id("<unk>") == vocabulary.id("never seen") == 3


def test_filler_names_skip_existing_words():
    vocabulary = Vocabulary.from_counts({"madeupword0000": 2, "x": 1}, min_count=1)
    assert vocabulary.words[4:] == ["madeupword0000", "x", "madeupword0001", "madeupword0002"]


def test_fairseq_overwrite_entries(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("the 9\n<unk> 5 #fairseq:overwrite\nof 4\n")
    vocabulary = Vocabulary.load(path)
    assert vocabulary.words[4:] == ["the", "<unk>", "of"]
    assert vocabulary.id("<unk>") == 5
    vocabulary.save(tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 3\nb 2\na 1\n", r"line 3: 'a' is already on line 1"),
        ("<unk> 3\n", r"line 1: '<unk>' is already a special token"),
        ("a 2\nb 3\n", r"line 2: count 3 of 'b' is higher than the previous count 2"),
        ("a\n", r"line 1: 'a' is not a word"),
        ("a 2\n\nb 1\n", r"line 2"),
        ("a -2\n", r"line 1"),
        (f"a {10**18}\n", r"line 1"),
        (" 2\n", r"line 1"),
        ("", r"contains no words"),
    ],
)
def test_rejects_invalid_lines(tmp_path, text, message):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        Vocabulary.load(path)
    assert str(path) in str(caught.value)
