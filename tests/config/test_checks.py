from dataclasses import dataclass
from typing import Literal

import pytest

from zipflm.config.checks import require, require_choices, require_fraction, require_positive


def test_an_error_names_field_value_and_remedy():
    require(True, "size", 3, "never seen")
    with pytest.raises(ValueError, match="^size='huge': choose base$"):
        require(False, "size", "huge", "choose base")


def test_a_fraction_lies_in_zero_to_one():
    for good in (0, 0.5, 0.999):
        require_fraction(dropout=good)
    for rate in (-0.1, 1, float("nan")):
        with pytest.raises(ValueError, match=f"^dropout={rate}: must lie in"):
            require_fraction(dropout=rate)


def test_the_first_number_below_one_is_named():
    require_positive(dim=1, layers=16)
    with pytest.raises(ValueError, match="^layers=0: must be at least 1"):
        require_positive(dim=1, layers=0, heads=-1)


@dataclass
class Shape:
    kind: Literal["round", "square"]
    name: str = "any text"


def test_only_fields_of_a_literal_type_are_limited():
    require_choices(Shape("round", name="whatever"))
    with pytest.raises(ValueError, match="^kind='oval': choose from round, square$"):
        require_choices(Shape("oval"))  # type: ignore[arg-type]
