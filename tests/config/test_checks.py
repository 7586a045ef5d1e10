from dataclasses import dataclass
from typing import Literal

import pytest

from zipflm.config.checks import Checked, FractionBelowOne, PositiveInt, require


@dataclass
class Shape(Checked):
    kind: Literal["round", "square"] = "round"
    name: str = "any text"
    dropout: FractionBelowOne = 0.0
    layers: PositiveInt = 1
    heads: PositiveInt = 1


def test_errors_name_field_value_and_remedy():
    require(True, "size", 3, "never seen")
    with pytest.raises(ValueError, match="^size='huge': choose base$"):
        require(False, "size", "huge", "choose base")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dropout": -0.1}, r"^dropout=-0.1: must be in \[0, 1\)$"),
        ({"dropout": 1}, "^dropout=1: must be in"),
        ({"dropout": float("nan")}, "^dropout=nan: must be in"),
        ({"layers": 0, "heads": -1}, "^layers=0: must be at least 1"),
        ({"kind": "oval"}, "^kind='oval': choose from round, square$"),
    ],
)
def test_checks_bounds_and_choices(fields, message):
    Shape("square", name="whatever", dropout=0.999)
    with pytest.raises(ValueError, match=message):
        Shape(**fields)
