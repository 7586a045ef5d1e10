"""A line as ids is what `prepare` makes of it."""

from itertools import islice

import numpy as np
import pytest

from zipflm.config import Splitting
from zipflm.data import encoding as module
from zipflm.data.bpe import Codes
from zipflm.data.corpora import addresses
from zipflm.data.encoding import EncodedWord, TextEncoder
from zipflm.data.prepare import Options, prepare
from zipflm.data.vocabulary import END, UNKNOWN, Vocabulary

ODD = [
    "",
    "\ufeffno mark here",
    "<s> <pad> </s> <unk> a<pad>b </S>",
    "\u00a0wide\u2003 \x1c gaps\x85",
    "O'Brien's 3,000.5 \u201cwell-known\u201d U.S. \u6f22\u5b57 \U0001f44d\U0001f3fd",
    "x@@ y",
]


def text_lines():
    for address in islice(addresses(), 0, 233, 20):
        words = address.text.split()
        yield from (" ".join(words[i : i + 60]) for i in range(0, len(words), 60))
    yield from ODD


@pytest.mark.parametrize("bpe", [None, 300])
@pytest.mark.parametrize("rule", ["whitespace", "words", "wikitext"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_of_lines_are_those_of_the_token_file(tmp_path, rule, lowercase, bpe):
    lines = list(text_lines())
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # Characters that the vocabulary lacks make pieces unknown.
    (tmp_path / "test.txt").write_text("\n".join([*lines[::7], *ODD, "\u0416\u0416a"]) + "\n")
    texts = {split: [tmp_path / f"{split}.txt"] for split in ("train", "test")}
    splitting = Splitting(rule, lowercase)
    folder = prepare(tmp_path / "d", texts, Options(splitting=splitting, bpe=bpe))
    encoder = TextEncoder(folder.vocabulary, folder.codes, folder.splitting)
    tokens = folder.tokens("test")
    expected = np.split(tokens.ids, tokens.offsets[1:-1].astype(int))
    read = (tmp_path / "test.txt").read_text().split("\n")[:-1]
    assert len(read) == len(expected)
    for line, ids in zip(read, expected, strict=True):
        words = encoder.line(line)
        assert [*(i for word in words for i in word.ids), END] == ids.tolist()


def test_words_have_their_spans_and_unknown_ones_a_single_id():
    vocabulary = Vocabulary.from_counts({"the": 3, "c@@": 2, "at": 2}, min_count=1)
    encoder = TextEncoder(vocabulary, Codes([("a", "t</w>"), ("t", "h"), ("th", "e</w>")]),
                          Splitting("words", lowercase=True))  # fmt: skip
    ids = vocabulary.index
    assert encoder.line("The cat,") == [
        EncodedWord("the", (0, 3), (ids["the"],)),
        EncodedWord("cat", (4, 7), (ids["c@@"], ids["at"])),
        EncodedWord(",", (7, 8), (UNKNOWN,)),
    ]
    assert encoder.line("") == []
    assert encoder.ids(["at", "at", "zat"]) == [(ids["at"],), (ids["at"],), (UNKNOWN,)]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 10)
    vocabulary = Vocabulary.from_counts({str(n): 1 for n in range(100)}, min_count=1)
    encoder = TextEncoder(vocabulary)
    for number in range(98):
        words = encoder.line(f"{number} {number + 1} {number} {number + 2}")
        assert [vocabulary.words[word.ids[0]] for word in words] == [word.word for word in words]
        assert sum(map(len, encoder._seen)) <= 10
