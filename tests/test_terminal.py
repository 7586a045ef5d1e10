"""Output to a terminal has no control characters, and messages are not too long."""

from hypothesis import given
from hypothesis import strategies as st

from zipflm.messages import escape_controls, one_line


@given(st.text())
def test_a_line_is_printable_and_plain_text_stays_as_it_is(text):
    shown = one_line(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


@given(st.text(min_size=1_990, max_size=2_010), st.integers(0, 5))
def test_a_line_is_never_longer_than_the_limit(text, times):
    assert len(one_line(text * times)) <= 2_000


def test_both_ends_of_a_long_line_stay():
    shown = one_line("name=" + "x" * 50_000 + "; choose another")
    assert shown.startswith("name=xxx") and shown.endswith("xxx; choose another")
    assert len(shown) == 2_000 and " ... " in shown


def test_text_of_the_other_direction_cannot_reorder_a_line():
    assert one_line("a\u202eb") == "a\\u202eb"


def test_escapes_only_control_characters():
    assert escape_controls("one\ntwo\x1b\r\u202e\n") == "one\ntwo\\x1b\\r\\u202e\n"
    text = "\u0645\u06cc\u200c\u062e \xa0\u3000\xad" + 5_000 * "x"
    assert escape_controls(text) == text
