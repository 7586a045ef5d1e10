import pytest

from zipflm.config import PLAIN, Blocks, Splitting


@pytest.mark.parametrize(
    "values", [{"block": 0}, {"context": 16}, {"context": -1}, {"break_mode": "eos"}]
)
def test_errors_start_with_the_field(values):
    """Callers add a prefix: --block, eval_block."""
    assert Blocks(break_mode="complete", block=16).context == 0
    ((field, value),) = values.items()
    with pytest.raises(ValueError, match=f"^{field}={value!r}: "):
        Blocks(**{"break_mode": "none", "block": 16} | values)


def test_default_splits_at_white_space_only():
    assert Splitting() == PLAIN and PLAIN.is_plain
    assert not Splitting("words").is_plain
    assert not Splitting(lowercase=True).is_plain


def test_str_gives_options_of_prepare():
    assert str(Splitting("wikitext", lowercase=True)) == "--words wikitext --lowercase"
    assert str(PLAIN) == "--words whitespace"


def test_rejects_unknown_rules():
    with pytest.raises(ValueError, match="rule='moses': choose from whitespace, words, wikitext"):
        Splitting("moses")
