"""Records survive JSON text; what is damaged is refused with the name of the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm import Config, preset
from zipflm.presets import DATASETS, FACTORIZATIONS
from zipflm.records import (
    UnknownKey,
    as_json,
    from_dict,
    load_object,
    parse,
    read_record,
    read_value,
    to_dict,
    write_record,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Circle:
    radius: float


@dataclass(frozen=True, kw_only=True)
class Square:
    side: float
    colour: Colour = Colour.RED


Shape = Circle | Square


@dataclass(frozen=True, kw_only=True)
class Everything:
    """One field of every kind that a record may have."""

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
    note: str = ""


numbers = st.floats(allow_nan=False, allow_infinity=False)
shapes = st.builds(Circle, radius=numbers) | st.builds(
    Square, side=numbers, colour=st.sampled_from(Colour)
)
records = st.builds(
    Everything,
    count=st.integers(),
    share=numbers,
    name=st.text(),
    is_new=st.booleans(),
    limit=st.none() | st.integers(),
    colour=st.sampled_from(Colour),
    mode=st.sampled_from(["fast", "slow"]),
    steps=st.lists(numbers, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    shape=shapes,
    shapes=st.lists(shapes, max_size=3).map(tuple),
    spare=st.none() | shapes,
    circle=st.builds(Circle, radius=numbers),
    by_name=st.dictionaries(st.text(), st.integers(), max_size=3),
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
def test_a_record_survives_json_text(record):
    text = as_json(record)
    assert text.isascii()
    assert from_dict(Everything, load_object(text)) == record
    assert from_dict(Everything, load_object(text.encode())) == record


@given(shapes)
def test_one_of_several_types_is_told_by_its_name(shape):
    assert parse(Shape, load_object(as_json(shape, Shape)), "") == shape


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_a_config_survives_json(dataset, factorization):
    config = preset(dataset, factorization)
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


def test_a_field_with_a_default_may_be_absent():
    values = to_dict(EXAMPLE)
    del values["note"]
    assert from_dict(Everything, values) == EXAMPLE


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_null_and_only_an_optional_field_reads_that(value):
    text = as_json(replace(EXAMPLE, limit=value))
    assert from_dict(Everything, load_object(text)).limit is None
    with pytest.raises(ValueError, match=r"^share=None: expected a number$"):
        from_dict(Everything, load_object(as_json(replace(EXAMPLE, share=value))))


# The field, what the file says there, and what the message says after the field's name.
DAMAGED = [
    ("count", '"3"', "='3': expected a whole number"),
    ("count", "2.5", "=2.5: expected a whole number"),
    ("count", "true", "=True: expected a whole number"),
    ("count", "null", "=None: expected a whole number"),
    ("count", "1e999", "=inf: expected a whole number"),
    ("share", "1e999", "=inf: expected a number"),
    ("share", "-1e999", "=-inf: expected a number"),
    ("share", "1" * 400, "=inf: expected a number"),
    ("share", "false", "=False: expected a number"),
    ("name", "7", "=7: expected text"),
    ("name", '["x"]', "=['x']: expected text"),
    ("is_new", "1", "=1: expected true or false"),
    ("limit", '"none"', "='none': expected a whole number"),
    ("colour", '"green"', "='green': choose from red, blue"),
    ("colour", '{"red": 1}', "={'red': 1}: choose from red, blue"),
    ("mode", '"medium"', "='medium': choose from fast, slow"),
    ("mode", "[]", "=[]: choose from fast, slow"),
    ("steps", "1.0", "=1.0: expected a list"),
    ("steps", '[1.0, "x"]', "='x': expected a number"),
    ("pair", "[1]", "=[1]: expected 2 values"),
    ("pair", '["one", 1]', "='one': expected a whole number"),
    ("shape", '{"radius": 1.0}', ": kind=None: choose from Circle, Square"),
    ("shape", '{"kind": "Line"}', ": kind='Line': choose from Circle, Square"),
    ("shape", '{"kind": ["Circle"]}', ": kind=['Circle']: choose from Circle, Square"),
    ("shape", "3", ": kind=None: choose from Circle, Square"),
    ("shape", '{"kind": "Circle"}', ".radius: missing, and Circle needs it"),
    ("shape", '{"kind": "Circle", "radius": "1"}', ".radius='1': expected a number"),
    ("shapes", '[{"kind": "Square", "side": null}]', ".side=None: expected a number"),
    ("spare", '{"side": 1}', ": kind=None: choose from Circle, Square"),
    ("circle", "2.0", "=2.0: expected the fields of Circle"),
    ("circle", '{"kind": "Square", "radius": 1}', ".kind='Square': expected Circle"),
    ("by_name", "[1]", "=[1]: expected values by name"),
    ("by_name", '{"a": 1, "b": "2"}', ".b='2': expected a whole number"),
    ("shapes_by_name", '{"b": {"kind": "Square"}}', ".b.side: missing, and Square needs it"),
]


def text_with(field, literal):
    """The file of `EXAMPLE` with one field spelt otherwise."""
    parts = {name: json.dumps(value) for name, value in to_dict(EXAMPLE).items()} | {field: literal}
    return "{" + ", ".join(f'"{name}": {part}' for name, part in parts.items()) + "}"


@pytest.mark.parametrize(("field", "literal", "message"), DAMAGED)
def test_a_damaged_value_is_named_by_its_field_and_file(tmp_path, field, literal, message):
    path = tmp_path / "record.json"
    path.write_text(text_with(field, literal))
    with pytest.raises(ValueError) as error:
        read_record(Everything, path)
    start = f"{path}: damaged or of another release: {field}"
    assert str(error.value).startswith(start + message)


@pytest.mark.parametrize("field", [f.name for f in fields(Everything) if f.name != "note"])
def test_a_missing_field_is_named(field):
    values = to_dict(EXAMPLE)
    del values[field]
    with pytest.raises(ValueError, match=f"^{field}: missing, and Everything needs it"):
        from_dict(Everything, values)


def test_an_unknown_field_is_named_with_the_closest_known_one():
    with pytest.raises(UnknownKey, match=r"unknown key coutn: did you mean count\?"):
        from_dict(Everything, to_dict(EXAMPLE) | {"coutn": 3})
    with pytest.raises(UnknownKey, match="unknown key circle.radus: did you mean circle.radius"):
        from_dict(Everything, to_dict(EXAMPLE) | {"circle": {"radus": 1}})
    with pytest.raises(UnknownKey, match="unknown key zzz: known are count, share, name, "):
        from_dict(Everything, to_dict(EXAMPLE) | {"zzz": 3})


NOT_JSON = {
    "nothing": b"",
    "NaN": b'{"share": NaN}',
    "Infinity": b'{"share": Infinity}',
    "-Infinity": b'{"share": -Infinity}',
    "an integer of 5000 digits": b'{"count": ' + b"9" * 5000 + b"}",
    "100,000 brackets": b"[" * 100_000,
    "100,000 closed brackets": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 braces": b'{"a":' * 100_000,
    "Latin-1": '{"name": "caf\xe9"}'.encode("latin-1"),
    "UTF-16": '{"count": 3}'.encode("utf-16"),
    "cut short": as_json(EXAMPLE).encode()[:-20],
    "two objects": b"{}{}",
}


@pytest.mark.parametrize("content", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_refused_by_file(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="record.json: damaged or of another release: not JSON$"):
        read_record(Everything, path)


@pytest.mark.parametrize("content", ["[]", "3", '"text"', "null", "true"])
def test_what_is_no_object_is_refused(content):
    with pytest.raises(ValueError, match="^not a JSON object$"):
        load_object(content)


def test_nesting_that_is_just_readable_is_refused_like_any_other_value():
    """Python gives up at some depth; showing a value must not fail where reading it did not."""
    for depth in range(700, 1000):
        literal = "[" * depth + "]" * depth
        shape = f'{{"a": {{"kind": "Circle", "radius": {literal}}}}}'
        with pytest.raises(ValueError, match="^(not JSON$|shapes_by_name.a.radius=)"):
            from_dict(Everything, load_object(text_with("shapes_by_name", shape)))


def test_a_long_value_is_cut_in_the_message():
    for literal in (json.dumps("x" * 10**6), json.dumps([["x"] * 1000] * 1000), "9" * 4000):
        with pytest.raises(ValueError, match=r"^circle=.*\.\.\.: expected") as error:
            from_dict(Everything, load_object(text_with("circle", literal)))
        assert len(str(error.value)) < 200


def test_a_file_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(ValueError, match="absent.json: missing$"):
        read_value(Shape, tmp_path / "absent.json")


def test_a_record_is_read_as_what_it_was_written_as(tmp_path):
    write_record(tmp_path / "one", EXAMPLE)
    assert read_record(Everything, tmp_path / "one") == EXAMPLE
    write_record(tmp_path / "several", EXAMPLE.shape, Shape)
    assert read_value(Shape, tmp_path / "several") == EXAMPLE.shape


CONFIG = preset("tiny", "ADP-T")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoderr": {}}, "unknown key decoderr: did you mean decoder?"),
        ({"input": {"kind": "Words", "dim": 3}}, "input: kind='Words': choose from FixedInput"),
        ({"vocab_size": "many"}, "vocab_size='many': expected a whole number"),
        ({"decoder": 3}, "decoder=3: expected the fields of DecoderConfig"),
        ({"output": {"kind": "AdaptiveOutput", "dim": 64}}, "output.cutoffs: missing"),
    ],
)
def test_a_damaged_config_says_where(change, message):
    with pytest.raises(ValueError) as error:
        from_dict(Config, to_dict(CONFIG) | change)
    assert message in str(error.value)


@dataclass(frozen=True)
class Red:
    shade: int


@dataclass(frozen=True)
class Blue:
    shade: int


@dataclass(frozen=True)
class Palette:
    by_name: Mapping[str, Red | Blue] | None
    numbered: tuple[int, Red | Blue]
    rest: tuple[Red | Blue, ...] | None = None


def test_one_of_several_records_is_told_at_any_depth():
    palette = Palette({"sky": Blue(1)}, (3, Red(2)), (Blue(4), Red(5)))
    assert from_dict(Palette, json.loads(as_json(palette))) == palette
