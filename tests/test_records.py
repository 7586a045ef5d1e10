from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm import Config, preset
from zipflm.config.checks import ByKind
from zipflm.presets import DATASETS, FACTORIZATIONS
from zipflm.settings import (
    as_json,
    from_dict,
    load_object,
    read_record,
    read_value,
    to_dict,
    write_record,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Circle:
    radius: float


@dataclass(frozen=True, kw_only=True)
class Square:
    side: float
    colour: Colour = Colour.RED


Shape = Annotated[Circle | Square, ByKind()]


@dataclass(frozen=True, kw_only=True)
class Everything:
    """A record with one field of every supported type."""

    count: int
    share: float
    name: str
    is_new: bool
    limit: int | None
    colour: Colour
    mode: Literal["fast", "slow"]
    steps: tuple[float, ...]
    pair: tuple[int, str]
    shape: Shape
    shapes: tuple[Shape, ...]
    spare: Shape | None
    circle: Circle
    by_name: Mapping[str, int]
    shapes_by_name: Mapping[str, Shape]
    rate: float | tuple[float, ...] = 0.0
    note: str = ""


numbers = st.floats(allow_nan=False, allow_infinity=False)
shapes = st.builds(Circle, radius=numbers) | st.builds(
    Square, side=numbers, colour=st.sampled_from(Colour)
)
records = st.builds(
    Everything,
    share=numbers,
    steps=st.lists(numbers, max_size=3).map(tuple),
    shape=shapes,
    shapes=st.lists(shapes, max_size=3).map(tuple),
    spare=st.none() | shapes,
    circle=st.builds(Circle, radius=numbers),
    shapes_by_name=st.dictionaries(st.text(), shapes, max_size=3),
    note=st.text(),
)
EXAMPLE = Everything(
    count=3,
    share=0.5,
    name="x",
    is_new=True,
    limit=None,
    colour=Colour.BLUE,
    mode="fast",
    steps=(1.0, 2.5),
    pair=(1, "one"),
    shape=Circle(radius=1.0),
    shapes=(Square(side=2.0),),
    spare=None,
    circle=Circle(radius=2.0),
    by_name={"a": 1},
    shapes_by_name={"a": Square(side=3.0)},
)


@given(records)
def test_record_round_trip(record):
    text = as_json(record)
    assert text.isascii()
    assert from_dict(Everything, load_object(text)) == record


def test_preset_round_trip():
    for dataset in DATASETS:
        for factorization in FACTORIZATIONS:
            config = preset(dataset, factorization)
            assert from_dict(Config, json.loads(as_json(config))) == config


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_numbers_become_null(value):
    text = as_json(replace(EXAMPLE, limit=value))
    assert from_dict(Everything, load_object(text)).limit is None
    with pytest.raises(ValueError, match="^share=None: must be a valid number$"):
        from_dict(Everything, load_object(as_json(replace(EXAMPLE, share=value))))


# Field, its JSON in the file, and the message after the name of the field.
DAMAGED = [
    ("count", '"3"', "='3': must be a valid integer"),
    ("count", "true", "=True: must be a valid integer"),
    ("share", "1e999", "=inf: must be a finite number"),
    ("share", "NaN", "=nan: must be a finite number"),
    ("name", "7", "=7: must be a valid string"),
    ("limit", '"none"', "='none': must be a valid integer"),
    ("colour", '"green"', "='green': must be 'red' or 'blue'"),
    ("mode", '"medium"', "='medium': must be 'fast' or 'slow'"),
    ("steps", '[1.0, "x"]', ".1='x': must be a valid number"),
    ("pair", "[1]", ".1: missing"),
    ("shape", '{"radius": 1.0}', "={'radius': 1.0}: Unable to extract tag"),
    ("shape", '{"kind": "Circle"}', ".radius: missing"),
    ("shape", '{"kind": "Circle", "radius": "1"}', ".radius='1': must be a valid number"),
    ("shapes", '[{"kind": "Square", "side": null}]', ".0.side=None: must be a valid number"),
    ("circle", "2.0", "=2.0: "),
    ("circle", '{"radus": 1}', ".radus"),
    ("shapes_by_name", '{"b": {"kind": "Square"}}', ".b.side: missing"),
]


def text_with(field, literal):
    """Return `EXAMPLE` as JSON with another value in one field."""
    parts = {name: json.dumps(value) for name, value in to_dict(EXAMPLE).items()} | {field: literal}
    return "{" + ", ".join(f'"{name}": {part}' for name, part in parts.items()) + "}"


@pytest.mark.parametrize(("field", "literal", "message"), DAMAGED)
def test_invalid_value_error_names_field_and_file(tmp_path, field, literal, message):
    path = tmp_path / "record.json"
    path.write_text(text_with(field, literal))
    with pytest.raises(ValueError) as error:
        read_record(Everything, path)
    start = f"{path}: damaged or from another release: "
    assert (
        str(error.value)
        .removeprefix(start)
        .removeprefix("unknown key ")
        .startswith(field + message)
    )


def test_missing_field_error_names_it():
    for field in fields(Everything):
        values = to_dict(EXAMPLE)
        del values[field.name]
        if field.name in ("rate", "note"):
            assert from_dict(Everything, values) == EXAMPLE
        else:
            with pytest.raises(ValueError, match=f"^{field.name}: missing$"):
                from_dict(Everything, values)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"name": "caf\xe9"}', b"{}{}"])
def test_invalid_json_error_names_the_file(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="record.json: damaged or from another release: not JSON$"):
        read_record(Everything, path)


def test_rejects_json_that_is_not_an_object():
    for content in ("[]", "3", "null"):
        with pytest.raises(ValueError, match="^not a JSON object$"):
            load_object(content)


def test_rejects_deep_nesting():
    literal = "[" * 900 + "]" * 900
    with pytest.raises(ValueError):
        from_dict(Everything, load_object(text_with("count", literal)))


def test_long_values_are_shortened_in_messages():
    with pytest.raises(ValueError, match=r"^circle=.*\.\.\.: ") as error:
        from_dict(Everything, load_object(text_with("circle", json.dumps("x" * 10**6))))
    assert len(str(error.value)) < 200


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="absent.json: missing$"):
        read_value(Shape, tmp_path / "absent.json")


def test_write_and_read_record(tmp_path):
    write_record(tmp_path / "one", EXAMPLE)
    assert read_record(Everything, tmp_path / "one") == EXAMPLE
    write_record(tmp_path / "several", EXAMPLE.shape, Shape)
    assert read_value(Shape, tmp_path / "several") == EXAMPLE.shape


def test_class_checks_name_the_full_path():
    config = to_dict(preset("tiny", "ADP-T"))
    config["decoder"]["num_heads"] = 5
    with pytest.raises(ValueError, match="^zipflm.decoder.num_heads=5: must divide dim=64"):
        from_dict(Config, config, "zipflm.")
    config = to_dict(preset("tiny", "ADP-T"))
    config["training"]["optimizer"]["momentum"] = 2.0
    with pytest.raises(ValueError, match="^training.optimizer.momentum=2.0: "):
        from_dict(Config, config)


def test_decoder_kinds():
    config = preset("tiny", "ADP-T")
    assert "kind" not in to_dict(config)["decoder"]
    other = preset("tiny", "ADP-T", variant="gcnn")
    assert to_dict(other)["decoder"]["kind"] == "GatedConvolutionDecoder"
    assert from_dict(Config, to_dict(other)) == other
    for decoder, message in (
        ({"kind": "Rnn"}, "decoder={'kind': 'Rnn'}: .* expected tags: .*TransformerDecoder"),
        (3, "decoder=3: "),
    ):
        with pytest.raises(ValueError, match=message):
            from_dict(Config, to_dict(config) | {"decoder": decoder})
