import pytest

from zipflm.config import PLAIN, Splitting


def test_white_space_alone_is_the_default():
    assert Splitting() == PLAIN and PLAIN.is_plain
    assert not Splitting("words").is_plain
    assert not Splitting(lowercase=True).is_plain


def test_it_reads_as_options_of_prepare():
    assert str(Splitting("wikitext", lowercase=True)) == "--split wikitext --lowercase"
    assert str(PLAIN) == "--split whitespace"


def test_an_unknown_rule_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="rule='moses': choose from whitespace, words, wikitext"):
        Splitting("moses")
