"""Values in messages are short, printable and on one line, whoever wrote them."""

import pytest

from zipflm.messages import quoted, unquoted

DEEP = []
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, "a\nb", "\x1b[2J", "\ud800", "\u202e", list(range(10**5)), DEEP, {"x" * 999: 1}],
    ids=lambda value: repr(value)[:12] if isinstance(value, str) else type(value).__name__,
)
def test_a_value_of_any_size_and_depth_is_one_short_line(value):
    assert len(quoted(value)) <= 80 and quoted(value).isprintable()


@pytest.mark.parametrize("value", [3, -0.5, "it's", (1, 2), None, ["a"], {"b": 1}])
def test_a_plain_value_is_as_python_writes_it(value):
    assert quoted(value) == repr(value)


@pytest.mark.parametrize("name", ["decoder.dim", "caf\u00e9", "a b"])
def test_a_plain_name_has_no_quotes(name):
    assert unquoted(name) == name


@pytest.mark.parametrize("name", ["", " ", "a ", "a\nb", "\ud800", "x" * 10**6])
def test_a_name_that_would_do_harm_is_quoted_or_cut(name):
    shown = unquoted(name)
    assert len(shown) <= 80 and shown.isprintable() and shown != name
