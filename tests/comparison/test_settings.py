"""Settings that a study varies: how they are written, and which are none."""

import pytest

from zipflm.comparison.settings import cutoffs, variations


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5k/155k/100k", (5000, 160_000)), ("20K/40k/200k", (20_000, 60_000)), ("2.5k/9", (2500,))],
)
def test_bands_are_words_per_band(text: str, expected: tuple[int, ...]) -> None:
    assert cutoffs(text) == expected


@pytest.mark.parametrize(
    "text", ["", "5k", "0/5", "a/b", "5k//5", "9" * 320 + "/5", "5/1e9", "5/\u0663"]
)
def test_bands_that_are_none_are_refused_in_a_short_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="--bands") as error:
        cutoffs(text)
    assert len(str(error.value)) < 200


def test_many_bands_take_no_time() -> None:
    assert len(cutoffs("/".join(["1"] * 60_000))) == 59_999


def test_every_combination_has_a_name_and_none_is_one_without() -> None:
    names = [variation.name for variation in variations(["4/8"], [0.0, 0.25])]
    assert names == ["bands 4/8, tail dropout 0", "bands 4/8, tail dropout 0.25"]
    assert [variation.name for variation in variations([], [])] == [""]
