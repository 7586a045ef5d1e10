import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from zipflm.cli.app import progress_bar
from zipflm.cli.data import data_warnings, summary
from zipflm.config import Splitting
from zipflm.data.bpe import join
from zipflm.data.folder import DataFolder
from zipflm.data.prepare import Options, prepare
from zipflm.data.vocabulary import Vocabulary

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
TEXTS = {split: [GOLDEN / "text" / f"{split}.txt"] for split in ("train", "valid", "test")}


def lines(split):
    return TEXTS[split][0].read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize("processes", [1, 2])
def test_golden_text_matches_fairseq(tmp_path, processes):
    folder = prepare(tmp_path / "d", TEXTS, Options(min_count=1), processes=processes)
    metadata = json.loads((GOLDEN / "dataset.json").read_text())
    blocks = np.load(GOLDEN / "blocks.npz")
    assert (folder.path / "vocabulary.txt").read_bytes() == (GOLDEN / "dict.txt").read_bytes()
    for split in TEXTS:
        tokens = folder.tokens(split)
        assert np.array_equal(tokens.ids, blocks[f"{split}.ids"])
        assert np.array_equal(np.diff(tokens.offsets.astype(int)), blocks[f"{split}.sizes"])
        assert folder.metadata.splits[split].unknown == metadata[split]["unk"]
        assert len(tokens.offsets) - 1 == metadata[split]["lines"]
    assert folder.ends_word.all() and len(folder.ends_word) == 496
    folder.verify()


@pytest.mark.parametrize(
    ("variant", "options"),
    [("threshold3", Options()), ("nwords100", Options(min_count=1, max_size=100))],
)
def test_golden_variants_match_fairseq(tmp_path, variant, options):
    golden = json.loads((GOLDEN / "dataset.json").read_text())["variants"][variant]
    folder = prepare(tmp_path / "d", TEXTS, options)
    assert len(folder.vocabulary) == golden["size"]
    splits = folder.metadata.splits
    assert {split: splits[split].tokens for split in TEXTS} == golden["tokens"]
    assert {split: splits[split].unknown for split in TEXTS} == golden["unk"]


def test_chunk_with_more_than_65536_words(tmp_path):
    words = [f"w{number}" for number in range(70_000)]
    (tmp_path / "x.txt").write_text("\n".join(words + words[::-1]))
    folder = prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, Options(min_count=1))
    tokens = folder.tokens("train")
    assert tokens.ids.dtype == np.uint32
    found = [folder.vocabulary.words[i] for i in tokens.ids[::2]]
    assert found == words + words[::-1] and set(tokens.ids[1::2].tolist()) == {2}


def test_given_vocabulary_needs_no_training_text(tmp_path):
    options = Options(vocabulary=GOLDEN / "dict.txt")
    folder = prepare(tmp_path / "d", {"test": TEXTS["test"]}, options)
    assert np.array_equal(folder.tokens("test").ids, np.load(GOLDEN / "blocks.npz")["test.ids"])
    with pytest.raises(ValueError, match="no valid split, only test"):
        folder.tokens("valid")


def test_output_is_deterministic(tmp_path):
    for name, processes in (("a", 1), ("b", 2)):
        prepare(tmp_path / name, TEXTS, processes=processes)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_bpe_pieces_join_to_the_words(tmp_path):
    folder = prepare(tmp_path / "d", TEXTS, Options(bpe=200))
    assert folder.unit == "bpe"
    vocabulary, ends = folder.vocabulary, folder.ends_word
    for split in TEXTS:
        ids = folder.tokens(split).ids.astype(int)
        expected = [w for line in lines(split) for w in [*line.split(), "</s>"]]
        found = np.split(ids, np.flatnonzero(ends[ids]) + 1)[:-1]
        assert len(found) == len(expected) == folder.metadata.splits[split].words
        words = [join(vocabulary.words[i] for i in pieces) for pieces in found]
        known = [
            w if 3 not in pieces else "<unk>" for w, pieces in zip(expected, found, strict=True)
        ]
        assert words == known
    assert folder.metadata.splits["train"].unknown == sum(
        line.split().count("<unk>") for line in lines("train")
    )
    again = prepare(tmp_path / "e", TEXTS, Options(bpe_codes=folder.path / "bpe.codes"))
    assert again.vocabulary == folder.vocabulary


@pytest.mark.parametrize("options", [Options(min_count=1), Options(bpe=5)])
def test_special_tokens_in_a_text(tmp_path, options):
    (tmp_path / "x.txt").write_text("aa <unk> aa <pad> </s> <s>\n")
    folder = prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, options)
    word = folder.vocabulary.id("aa")
    tokens = folder.tokens("train")
    assert tokens.ids.tolist() == [word, 3, word, 3, 2, 0, 2]
    # A `</s>` in the text does not end a sentence.
    assert tokens.offsets.tolist() == [0, 7]


def test_progress_covers_all_bytes(tmp_path):
    done: dict[str, int] = {}
    totals: dict[str, int | None] = {}

    def report(what, size, total):
        done[what] = done.get(what, 0) + size
        totals[what] = total

    prepare(tmp_path / "d", TEXTS, report=report)
    assert done == totals
    assert done["reading train"] == TEXTS["train"][0].stat().st_size


def test_never_overwrites_a_folder(tmp_path):
    prepare(tmp_path / "d", TEXTS)
    with pytest.raises(FileExistsError, match="already exists"):
        prepare(tmp_path / "d", TEXTS)
    (tmp_path / "e").mkdir()
    prepare(tmp_path / "e", TEXTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bpe": 10, "bpe_codes": "x"}, "bpe=10: cannot be combined with bpe_codes"),
        ({"vocabulary": "x", "min_count": 2}, "vocabulary: cannot be combined"),
        ({"min_count": 0}, "min_count=0"),
        ({"max_size": 4}, "max_size=4"),
        ({"bpe": 0}, "bpe=0"),
        ({"errors": "ignore"}, "errors=ignore"),
        ({"names": "names.txt"}, "names=names.txt: needs ids"),
        ({"ids": True, "bpe": 10}, "ids: cannot be combined"),
    ],
)
def test_rejects_invalid_options(arguments, message):
    with pytest.raises(ValueError, match=message):
        Options(**arguments)


def test_rejects_invalid_splits(tmp_path):
    with pytest.raises(ValueError, match="no training text"):
        prepare(tmp_path / "d", {"valid": TEXTS["valid"]})
    with pytest.raises(ValueError, match="no text"):
        prepare(tmp_path / "d", {}, Options(vocabulary=GOLDEN / "dict.txt"))
    with pytest.raises(ValueError, match="no word occurs at least 99999 times"):
        prepare(tmp_path / "d", TEXTS, Options(min_count=99999))


PROSE = "Mr. O'Brien didn't say \"3,000.5\".\nWell-known, it's NOT!\n"


@pytest.mark.parametrize(
    ("splitting", "words"),
    [
        (Splitting("words"), "Mr . O'Brien didn't say \" 3,000.5 \" . Well-known , it's NOT !"),
        (
            Splitting("wikitext", lowercase=True),
            "mr. o 'brien didn 't say \" 3 @,@ 000 @.@ 5 \" . well @-@ known , it 's not !",
        ),
        (Splitting(lowercase=True), PROSE.lower()),
    ],
    ids=str,
)
def test_splitting_rules(tmp_path, splitting, words):
    (tmp_path / "x.txt").write_text(PROSE * 3)
    options = Options(splitting=splitting)
    made = prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, options)
    folder = DataFolder.open(made.path)
    assert folder.splitting == splitting
    assert set(folder.vocabulary.words[4:]) >= set(words.split())
    ids = folder.tokens("train").ids.tolist()
    assert [folder.vocabulary.words[i] for i in ids if i != 2] == words.split() * 3
    assert folder.split("train").out_of_vocabulary == 0


def text_hash(folder, split="test"):
    return folder.metadata.splits[split].words_sha256


@pytest.mark.parametrize(
    "other", ["a c b\nd e\n", "a b c\ne d\n", "d e\na b c\n", "a b c d\ne\n", "a b c\nd e\n\n"]
)
def test_text_hash_depends_on_order(tmp_path, other):
    folders = []
    for name, text in (("one", "a b c\nd e\n"), ("other", other)):
        (tmp_path / f"{name}.txt").write_text(text)
        splits = {"train": TEXTS["train"], "test": [tmp_path / f"{name}.txt"]}
        folders.append(prepare(tmp_path / name, splits))
    assert text_hash(folders[0]) != text_hash(folders[1])


@pytest.mark.parametrize("bpe", [None, 5])
def test_unk_in_a_text_is_not_out_of_vocabulary(tmp_path, bpe):
    (tmp_path / "train.txt").write_text("ab b c ab b c\n")
    (tmp_path / "test.txt").write_text("ab <unk> b\n\u00e9 <unk>\n")
    splits = {name: [tmp_path / f"{name}.txt"] for name in ("train", "test")}
    options = Options(min_count=1) if bpe is None else Options(bpe=bpe)
    metadata = prepare(tmp_path / "d", splits, options).metadata.splits["test"]
    assert (metadata.unknown, metadata.out_of_vocabulary) == (3, 1)


def test_out_of_vocabulary_with_unk_entry(tmp_path):
    # fairseq dictionaries may have an entry `<unk>`, which makes `<unk>` in a text known.
    (tmp_path / "dict.txt").write_text("the 10\n<unk> 5 #fairseq:overwrite\ncat 2\n")
    (tmp_path / "test.txt").write_text("the <unk> cat <unk> dog\n")
    options = Options(vocabulary=tmp_path / "dict.txt")
    metadata = prepare(tmp_path / "d", {"test": [tmp_path / "test.txt"]}, options).metadata.splits[
        "test"
    ]
    assert (metadata.unknown, metadata.out_of_vocabulary) == (1, 1)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("requested", "is_shown"), [(40, False), (41, True)])
def test_summary_shows_missing_merges(bpe_data, requested, is_shown):
    assert bpe_data.metadata.bpe.merges == 40
    metadata = replace(bpe_data.metadata, options=replace(bpe_data.metadata.options, bpe=requested))
    text = summary(DataFolder(bpe_data.path, metadata, bpe_data.vocabulary))
    assert ("learned 40 of 41 merges" in text) == is_shown


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_progress_bar_is_for_terminals(monkeypatch, kind):
    stream = kind()
    monkeypatch.setattr("sys.stderr", stream)
    for name, value in {"COLUMNS": "100", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    with progress_bar() as report:
        for done in (5, 5, 3):
            report("scoring test", done, 10)
    if kind is io.StringIO:
        assert stream.getvalue() == ""
        return
    last = stream.getvalue()[stream.getvalue().rindex("\x1b[2K") :]
    assert "scoring test" in last and "100%" in stream.getvalue() and " 30%" in last


def folder_of(tmp_path, valid, **options):
    (tmp_path / "train.txt").write_text("a b c\n" * 20)
    (tmp_path / "valid.txt").write_text(valid)
    splits = {"train": [tmp_path / "train.txt"], "valid": [tmp_path / "valid.txt"]}
    return prepare(tmp_path / "data", splits, Options(**options))


@pytest.mark.parametrize(("unknown", "is_shown"), [(5, False), (6, True)])
def test_warns_about_unknown_words(tmp_path, unknown, is_shown):
    line = " ".join(["a"] * (99 - unknown) + ["x"] * unknown)
    shown = list(data_warnings(folder_of(tmp_path, f"{line}\n")))
    assert len(shown) == is_shown
    assert not is_shown or shown[0].startswith("6.0% of the words of the valid text are unknown")


def test_warns_about_unknown_words_of_the_training_text_with_a_vocabulary(tmp_path):
    vocabulary = Vocabulary.from_counts({"a": 1, "b": 1}, min_count=1)
    (shown,) = data_warnings(folder_of(tmp_path, "a b\n", vocabulary=vocabulary))
    assert shown.startswith("25.0% of the words of the train text are unknown")
    assert "same kind of text as the text of the vocabulary" in shown


def test_warns_about_line_ends_in_the_text(tmp_path):
    (shown,) = data_warnings(folder_of(tmp_path, "a b </s>\n\nc </s>\n"))
    assert shown.startswith("the valid text contains </s> 2 times")
