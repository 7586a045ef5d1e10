from itertools import islice

import numpy as np
import pytest
from addresses import addresses
from hypothesis import given
from hypothesis import strategies as st

from zipflm.config import Splitting
from zipflm.data.bpe import Codes
from zipflm.data.encoding import EncodedWord, Encoding, TextEncoder, spellings
from zipflm.data.prepare import Options, prepare
from zipflm.data.scan import LINE_END
from zipflm.data.vocabulary import END, PAD, SPECIALS, UNKNOWN, Vocabulary

# Few letters, so that words repeat and share pieces, and some are unknown.
WORDS = st.text("abc\u00e9", min_size=1, max_size=4) | st.sampled_from([*SPECIALS, "a@@"])
TEXTS = st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=6)
KNOWN = Vocabulary.from_counts({"a": 9, "ab": 8, "abc": 7, "b": 6, "ca": 5, "a@@": 4}, min_count=1)
CODES = Codes([("a", "b"), ("a", "b</w>"), ("c", "a</w>"), ("b", "c")])
PIECES = Vocabulary.from_counts(
    {"a": 9, "a@@": 8, "ab": 7, "ab@@": 6, "b": 5, "c@@": 4, "ca": 3, "c": 2}, min_count=1
)


def numbered(text):
    """Return the distinct words of a text, the line end first, and the text as numbers."""
    index = {LINE_END: 0}
    flat = [word for line in text for word in [*line, LINE_END]]
    return index, [index.setdefault(word, len(index)) for word in flat]


def chunked(places, cut):
    """Yield two chunks, each as the numbers of its words and places among these."""
    for part in (places[:cut], places[cut:]):
        numbers = np.array(list(dict.fromkeys([0, *part])), dtype=np.uint32)
        place_of = {int(number): place for place, number in enumerate(numbers)}
        yield numbers, np.array([place_of[number] for number in part], dtype=np.uint16)


def naive(text, vocabulary, codes):
    """Encode word by word; return ids and line ends."""
    ids, ends = [], []
    for line in text:
        for word in line:
            pieces = [word] if codes is None else codes.split([word])[0]
            found = [vocabulary.id(piece) for piece in pieces]
            found = [UNKNOWN] if UNKNOWN in found else found
            ids += [UNKNOWN if i == PAD else i for i in found]
        ids.append(END)
        ends.append(len(ids))
    return ids, ends


@pytest.mark.parametrize(
    ("vocabulary", "codes"), [(KNOWN, None), (PIECES, CODES)], ids=["words", "pieces"]
)
@given(text=TEXTS, cut=st.integers(0, 30))
def test_encoding_matches_reference(vocabulary, codes, text, cut):
    index, places = numbered(text)
    encoding = Encoding(index, vocabulary, codes)
    ids, ends = [], []
    for numbers, part in chunked(places, cut):
        found, line_ends = encoding.apply(numbers, part)
        ends += (line_ends + len(ids)).tolist()
        ids += found.tolist()
    assert (ids, ends) == naive(text, vocabulary, codes)


def test_word_with_unknown_piece_becomes_one_unk():
    index, places = numbered([["abc\u00e9ab", "ab"]])
    ids, _ = Encoding(index, PIECES, CODES).apply(np.arange(3), np.array(places))
    assert ids.tolist() == [UNKNOWN, PIECES.id("ab"), END]


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
        words = address.split()
        yield from (" ".join(words[i : i + 60]) for i in range(0, len(words), 60))
    yield from ODD


@pytest.mark.parametrize("bpe", [None, 300])
@pytest.mark.parametrize("rule", ["whitespace", "words", "wikitext"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_text_encoder_matches_prepare(tmp_path, rule, lowercase, bpe):
    lines = list(text_lines())
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # Characters outside the vocabulary make pieces unknown.
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


def test_text_encoder_returns_spans_and_ids():
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


def test_spellings_are_truncated_and_padded_bytes():
    words = ["the", "\u00e9t\u00e9", "incomprehensibilities", "madeupword0000"]
    vocabulary = Vocabulary([*SPECIALS, *words], [0] * 4 + [3, 2, 1, 0])
    table = spellings(vocabulary, 8)
    assert table.shape == (8, 8)
    assert not table[:4].any()
    for row, word in zip(table[4:], words, strict=True):
        spelled = [byte + 1 for byte in word.encode()[:8]]
        assert row.tolist() == spelled + [0] * (8 - len(spelled))
    assert table.dtype == np.int16


def test_spellings_with_markers():
    vocabulary = Vocabulary([*SPECIALS, "an", "incomprehensible"], [0] * 4 + [2, 1])
    table = spellings(vocabulary, 5, markers=True)
    assert not table[:4].any()
    assert table[4].tolist() == [257, ord("a") + 1, ord("n") + 1, 258, 0]
    assert table[5].tolist() == [257, *(byte + 1 for byte in b"inc"), 258]
