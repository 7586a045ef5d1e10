"""Words to ids, against the plainest way to do it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.bpe import Codes
from zipflm.data.encoding import Encoding
from zipflm.data.scan import LINE_END
from zipflm.data.vocabulary import END, PAD, SPECIALS, UNKNOWN, Vocabulary

# Few letters, so that words repeat, share pieces, and some are unknown; specials among them.
WORDS = st.text("abc\u00e9", min_size=1, max_size=4) | st.sampled_from([*SPECIALS, "a@@"])
TEXTS = st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=6)
KNOWN = Vocabulary.from_counts({"a": 9, "ab": 8, "abc": 7, "b": 6, "ca": 5, "a@@": 4}, min_count=1)
CODES = Codes([("a", "b"), ("a", "b</w>"), ("c", "a</w>"), ("b", "c")])
PIECES = Vocabulary.from_counts(
    {"a": 9, "a@@": 8, "ab": 7, "ab@@": 6, "b": 5, "c@@": 4, "ca": 3, "c": 2}, min_count=1
)


def numbered(text):
    """The words of a text by number, the end of a line first, and the text in these numbers."""
    index = {LINE_END: 0}
    flat = [word for line in text for word in [*line, LINE_END]]
    return index, [index.setdefault(word, len(index)) for word in flat]


def chunked(places, cut):
    """Two chunks of numbers, each as a list of the words it has and places in that list."""
    for part in (places[:cut], places[cut:]):
        numbers = np.array(list(dict.fromkeys([0, *part])), dtype=np.uint32)
        place_of = {int(number): place for place, number in enumerate(numbers)}
        yield numbers, np.array([place_of[number] for number in part], dtype=np.uint16)


def naive(text, vocabulary, codes):
    """One word after the other; ids, and where lines end."""
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
def test_ids_are_those_of_looking_up_word_by_word(vocabulary, codes, text, cut):
    index, places = numbered(text)
    encoding = Encoding(index, vocabulary, codes)
    ids, ends = [], []
    for numbers, part in chunked(places, cut):
        found, line_ends = encoding.apply(numbers, part)
        ends += (line_ends + len(ids)).tolist()
        ids += found.tolist()
    assert (ids, ends) == naive(text, vocabulary, codes)


def test_a_word_with_an_unknown_piece_is_one_unknown():
    index, places = numbered([["abc\u00e9ab", "ab"]])
    ids, _ = Encoding(index, PIECES, CODES).apply(np.arange(3), np.array(places))
    assert ids.tolist() == [UNKNOWN, PIECES.id("ab"), END]
