import pytest

from zipflm.interop.inert_pickle import Instance, Named
from zipflm.interop.messages import listed, plain_text, shown, type_name


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, b"x" * 10**6, ["y" * 1_000] * 10_000, {"z": "z" * 10**6}, [[[1] * 100] * 100]]
    + [Instance("a.B", ("x" * 10**6,)), Named("a" * 10**6), "\x1b]0;owned\x07\r\n\u202e"],
    ids=lambda value: type(value).__name__,
)
def test_values_are_short_and_printable(value):
    assert len(shown(value)) < 2_500
    assert shown(value).isprintable()


@pytest.mark.parametrize("value", [None, True, 3, -0.5, "a", "it's", [1, "b"], (2,), (), b"c"])
def test_plain_values_are_shown_as_python_writes_them(value):
    assert shown(value) == repr(value)


def test_names_are_printable_and_stand_without_quotes():
    assert plain_text("decoder.layers.0.fc1.bias") == "decoder.layers.0.fc1.bias"
    assert plain_text("a\x1b[2J\n'") == r"a\x1b[2J\n'"
    assert len(plain_text("x" * 10**6)) < 500


def test_long_lists_are_cut_and_counted():
    assert listed(["a", "b"]) == "a, b"
    assert listed(map(str, range(1_012))).endswith(", 9 and 1,002 more")
    assert listed([]) == ""


def test_what_stands_for_an_object_is_called_as_its_class():
    assert type_name(Instance("fairseq.meters.AverageMeter", ())) == "fairseq.meters.AverageMeter"
    assert type_name([]) == "list"
