import pytest

from zipflm.config import PLAIN, Blocks, Splitting


@pytest.mark.parametrize(
    "values", [{"block": 0}, {"context": 16}, {"context": -1}, {"break_mode": "eos"}]
)
def test_the_field_that_is_wrong_is_named_first(values):
    """Others put a prefix before it: --block, eval_block."""
    assert Blocks(break_mode="complete", block=16).context == 0
    ((field, value),) = values.items()
    with pytest.raises(ValueError, match=f"^{field}={value!r}: "):
        Blocks(**{"break_mode": "none", "block": 16} | values)


def test_white_space_alone_is_the_default():
    assert Splitting() == PLAIN and PLAIN.is_plain
    assert not Splitting("words").is_plain
    assert not Splitting(lowercase=True).is_plain


def test_it_reads_as_options_of_prepare():
    assert str(Splitting("wikitext", lowercase=True)) == "--words wikitext --lowercase"
    assert str(PLAIN) == "--words whitespace"


def test_an_unknown_rule_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="rule='moses': choose from whitespace, words, wikitext"):
        Splitting("moses")
