"""Readable text from words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.config import Splitting
from zipflm.data.splitting import Joiner, Splitter


def join(rule, words):
    return Splitter(Splitting(rule)).join(words.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("Hello , world !", "Hello, world!"),
        ('He said : " No . " Then " yes " .', 'He said: "No." Then "yes".'),
        ("\u201c a \u201d ( b ) [ c ]", "\u201ca\u201d (b) [c]"),
        ("the dogs ' food , a ' quoted ' word", "the dogs' food, a 'quoted' word"),
        ("$ 5 , 7 % of # 1", "$5, 7% of #1"),
        (
            "so ... what ?! 5 \u2013 6 and / or a -- b - c",
            "so... what?! 5\u20136 and/or a -- b - c",
        ),
        ("\u6f22 \u5b57 \u3002 \u306a no", "\u6f22\u5b57\u3002\u306a no"),
        ("don\u2019t \u2018 x \u2019", "don\u2019t \u2018x\u2019"),
        ("@-@", "@-@"),
        ("", ""),
    ],
)
def test_words_become_prose(words, text):
    assert join("words", words) == text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("a well @-@ known 3 @,@ 000 @.@ 5", "a well-known 3,000.5"),
        ("it 's O 'Brien who didn 't", "it's O'Brien who didn't"),
        ('" <unk> " , he said', '"<unk>", he said'),
        ("at 10 : 30 : go", "at 10:30: go"),
    ],
)
def test_the_marks_of_wikitext_are_undone(words, text):
    assert join("wikitext", words) == text


def test_words_between_white_space_are_joined_by_spaces():
    assert join("whitespace", 'a , " b @-@ c') == 'a , " b @-@ c'


@pytest.mark.parametrize("rule", ["whitespace", "words", "wikitext"])
@given(
    words=st.lists(st.text("ab1.,'\"-/()\u2019\u2013\u6f22", min_size=1, max_size=3), max_size=12)
)
def test_a_text_grows_at_its_end_only_and_by_white_space_only(rule, words):
    joiner, text = Joiner(rule), ""
    for word in words:
        text += joiner.add(word)
        assert text.endswith(word)
    assert text.replace(" ", "") == "".join(words)
    assert text == text.strip() and "  " not in text
