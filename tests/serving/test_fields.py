import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.serving.errors import Refusal
from zipflm.serving.fields import Fields, parse_object, require_known_model

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def refused(call, *arguments):
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    assert 400 <= caught.value.status < 500
    return caught.value


@given(st.binary(max_size=60))
def test_a_body_is_an_object_or_refused(body):
    try:
        assert isinstance(parse_object(body), dict)
    except Refusal as refusal:
        assert refusal.status == 400 and refusal.code == "invalid_json"


@settings(deadline=None, max_examples=50)
@given(JSON)
def test_every_value_is_taken_or_refused_by_name(value):
    fields = Fields({"it": value})
    for read in (
        lambda: fields.text("it"),
        lambda: fields.flag("it"),
        lambda: fields.integer("it", 0, -5, 5),
        lambda: fields.number("it", 0.0, -5, 5),
        lambda: fields.refuse_unless_default("it", 0),
    ):
        try:
            read()
        except Refusal as refusal:
            assert refusal.param == "it" and refusal.message.startswith("it=")


def test_null_is_absent():
    fields = Fields({"it": None})
    assert fields.text("it", "x") == "x" and fields.integer("it", 3, 0, 1) == 3
    assert fields.flag("it") is False and fields.number("other", 0.5, 0, 1) == 0.5


def test_true_is_no_number():
    for read in (Fields({"it": True}).integer, Fields({"it": True}).number):
        assert "number" in refused(read, "it", 0, 0, 5).message


@pytest.mark.parametrize(
    ("name", "meant"), [("logprob", "logprobs"), ("max_token", "max_tokens"), ("Stop", "stop")]
)
def test_what_looks_misspelt_is_told(name, meant):
    (warning,) = Fields({name: 1}).warnings(["logprobs", "max_tokens", "stop"])
    assert warning.endswith(f"is it {meant}?")


@given(st.text())
def test_warnings_fit_a_header(name):
    for warning in Fields({name: 1, "logprobs\n": 1, "lo\u00e9gprobs": 2}).warnings(["logprobs"]):
        assert warning.isascii() and warning.isprintable()


def test_a_model_that_is_not_there_is_404():
    refusal = refused(require_known_model, "b", {"a": 1})
    assert refusal.status == 404 and "this service has a" in refusal.message
