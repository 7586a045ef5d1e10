import numpy as np

from zipflm.data.encoding import spellings
from zipflm.data.vocabulary import SPECIALS, Vocabulary


def test_spelling_is_bytes_plus_one_cut_and_padded():
    words = ["the", "\u00e9t\u00e9", "incomprehensibilities", "madeupword0000"]
    vocabulary = Vocabulary([*SPECIALS, *words], [0] * 4 + [3, 2, 1, 0])
    table = spellings(vocabulary, 8)
    assert table.shape == (8, 8)
    assert not table[:4].any()
    for row, word in zip(table[4:], words, strict=True):
        spelled = [byte + 1 for byte in word.encode()[:8]]
        assert row.tolist() == spelled + [0] * (8 - len(spelled))
    assert table.dtype == np.int16


def test_markers_surround_what_is_left_of_a_word():
    vocabulary = Vocabulary([*SPECIALS, "an", "incomprehensible"], [0] * 4 + [2, 1])
    table = spellings(vocabulary, 5, markers=True)
    assert not table[:4].any()
    assert table[4].tolist() == [257, ord("a") + 1, ord("n") + 1, 258, 0]
    assert table[5].tolist() == [257, *(byte + 1 for byte in b"inc"), 258]
