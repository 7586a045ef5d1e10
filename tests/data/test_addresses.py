"""The embedded corpus: complete, split by address, cut into sentences without losing a letter."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.corpora import addresses, sentences, split_of


@pytest.fixture(scope="module")
def everything():
    return list(addresses())


def test_every_address_is_there_in_the_order_of_time(everything):
    assert len(everything) == 233
    years = [address.year for address in everything]
    assert (years[0], years[-1]) == (1790, 2021) and years == sorted(years)
    assert everything[0].speaker == "George Washington"
    assert all(address.text.strip() and address.speaker for address in everything)
    assert not any("&quot;" in address.text or "&mdash;" in address.text for address in everything)


def test_each_split_has_addresses_of_all_times():
    splits = [split_of(number) for number in range(233)]
    assert Counter(splits) == {"train": 210, "valid": 12, "test": 11}
    for held_out in ("valid", "test"):
        places = [number for number, split in enumerate(splits) if split == held_out]
        assert {later - earlier for earlier, later in zip(places, places[1:], strict=False)} == {20}


def without_spaces(text):
    return "".join(text.split())


def test_no_character_of_an_address_is_lost_but_notes_on_the_audience(everything):
    for address in everything[::40]:
        spoken = re.sub(r"(?i)[(\[](laughter|applause)\.?[)\]]", "", address.text)
        assert without_spaces("".join(sentences(address.text))) == without_spaces(spoken)


@given(st.lists(st.sampled_from(["Mr.", "U.S.", " ", "a", "I", ".", '"', ")", "1,2", "\u2014"])))
def test_no_character_of_any_text_is_lost_and_no_sentence_is_empty(parts):
    found = list(sentences("".join(parts)))
    assert without_spaces("".join(found)) == without_spaces("".join(parts))
    assert all(sentence == " ".join(sentence.split()) != "" for sentence in found)


def test_notes_and_abbreviations_make_no_sentences():
    text = "We won. [Laughter] See vol. 3, p. 4, of Prof. Day. (Applause.) In Oct.-Dec. it rained."
    assert list(sentences(text)) == [
        "We won .",
        "See vol. 3 , p. 4 , of Prof. Day .",
        "In Oct. - Dec. it rained .",
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Mr. J. Q. Adams spoke. So did I.", ["Mr. J. Q. Adams spoke .", "So did I ."]),
        ('He said: "Go!" They went.', ['He said : " Go ! "', "They went ."]),
        (
            "In the U.S. Senate, e.g., it rose 1,234.5 percent.",
            ["In the U.S. Senate , e . g . , it rose 1,234.5 percent ."],
        ),
        ("It's well-known\u2014isn't it?", ["It's well-known \u2014 isn't it ?"]),
        ("No end", ["No end"]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, wanted):
    assert list(sentences(text)) == wanted
