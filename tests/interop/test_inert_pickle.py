"""The interpreter gives what Python's unpickler would, and calls, imports and hashes nothing."""

import argparse
import collections
import io
import pickle

import pytest
from interop.pickles import mapping, number, program, text

from zipflm.interop import inert_pickle
from zipflm.interop.inert_pickle import InertUnpickler, Instance, Named


def loaded(data, **callbacks):
    return InertUnpickler(**callbacks).load(io.BytesIO(data))


PLAIN = [
    None,
    [True, False, 0, -1, 255, 65_536, 2**31, -(2**63), 2**100],
    [0.0, -1.5, 1e300, float("inf")],
    ["", "text", "\u00e9\u4e00\U0001f600", "x" * 300],
    [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[], [1], {}]],
    {"a": {"b": {"c": [1, (2, {3: 4})]}}, 5: None},
    {str(i): i for i in range(3_000)},
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_values_come_back(value, protocol):
    assert loaded(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_bytes_come_back(protocol):
    assert loaded(pickle.dumps([b"", b"bytes", b"x" * 300], protocol)) == [
        b"",
        b"bytes",
        b"x" * 300,
    ]


def test_shared_and_cyclic_values_stay_so():
    inner = [1]
    cycle = {"inner": inner, "again": inner}
    cycle["self"] = cycle
    again = loaded(pickle.dumps(cycle, 2))
    assert again["self"] is again
    assert again["inner"] is again["again"]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_object_is_a_record_of_its_class_and_attributes(protocol):
    instance = loaded(pickle.dumps(argparse.Namespace(get=1, keys="a"), protocol))
    assert (instance.name, instance.arguments) == ("argparse.Namespace", ())
    assert instance.state == {"get": 1, "keys": "a"}


class Caller:
    def __reduce__(self):
        return print, ("called",), {"attribute": 1}, iter([1, 2]), iter([("a", 3)])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_is_recorded_and_not_made(protocol, capsys):
    unpickler = InertUnpickler()
    instance = unpickler.load(io.BytesIO(pickle.dumps(Caller(), protocol)))
    assert isinstance(instance, Instance)
    assert instance.name in ("builtins.print", "__builtin__.print")
    assert (instance.arguments, instance.state) == (("called",), {"attribute": 1})
    assert unpickler.names == {instance.name}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("opcodes", "arguments"),
    [
        ((b"(", text("x"), b"ios\nsystem\n"), ("x",)),
        ((b"(", b"cos\nsystem\n", text("x"), b"o"), ("x",)),
        ((text("os"), text("system"), b"\x93", b")\x81"), ()),
        ((b"cos\nsystem\n", b")}\x92"), ()),
        ((b"cos\nsystem\n", text("x"), b"\x85R"), ("x",)),
    ],
    ids=["INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE"],
)
def test_no_way_of_calling_is_forgotten(opcodes, arguments):
    instance = loaded(program(*opcodes))
    assert (instance.name, instance.arguments) == ("os.system", arguments)


def test_the_names_before_a_damage_are_known():
    unpickler = InertUnpickler()
    with pytest.raises(ValueError, match="its pickle"):
        unpickler.load(io.BytesIO(program(b"cos\nsystem\n", b"\xff")))
    assert unpickler.names == {"os.system"}


def test_the_caller_builds_what_it_knows():
    data = pickle.dumps({"a": collections.OrderedDict(b=1)}, 2)
    assert loaded(data, build=lambda name, arguments: {}) == {"a": {"b": 1}}


def test_references_are_the_callers():
    data = program(text("id"), b"Q")
    assert loaded(data, persistent=lambda reference: reference * 2) == "idid"
    with pytest.raises(ValueError, match="a reference to something outside"):
        loaded(data)


def test_several_pickles_follow_each_other():
    unpickler = InertUnpickler()
    stream = io.BytesIO(pickle.dumps([1], 2) + pickle.dumps({2: 3}, 2) + b"rest")
    assert [unpickler.load(stream), unpickler.load(stream)] == [[1], {2: 3}]
    assert stream.read() == b"rest"


def test_pickles_do_not_share_values_but_the_limit_on_opcodes(monkeypatch):
    monkeypatch.setattr(inert_pickle, "MAX_OPCODES", 8)
    unpickler = InertUnpickler()
    assert unpickler.load(io.BytesIO(program(b"]q\0"))) == []
    with pytest.raises(ValueError, match="uses a value 0 that it did not store"):
        unpickler.load(io.BytesIO(program(b"h\0")))
    with pytest.raises(ValueError, match="more than 8 opcodes"):
        unpickler.load(io.BytesIO(program(b"N")))


@pytest.mark.parametrize(
    ("opcodes", "reason"),
    [
        ([], "uses a value that it did not make"),
        ([b"t"], "uses a value that it did not make"),
        ([b"N\x85\x86"], "uses a value that it did not make"),
        ([b"h\5"], "uses a value 5 that it did not store"),
        ([b"NNR"], "a call of what has no name"),
        ([b"cos\nsystem\nNR"], "a call of what has no name"),
        ([b"NNb"], "attributes for what is no object"),
        ([b"cos\nsystem\n)\x81}b}b"], "attributes set twice"),
        ([b"NNa"], "items for what is no list"),
        ([b"NNNs"], "entries for what is no dictionary"),
        ([b"}(Nu"], "a key without a value"),
        ([b"}NNs"], "the key None; only short texts"),
        ([b"})Ns"], r"the key \(\); only short texts"),
        ([b"}G", bytes(8), b"Ns"], "the key 0.0; only short texts"),
        ([b"}", text("x" * 1_001), b"Ns"], "the key 'xxx.*'...; only short texts"),
        ([b"}\x8a\x08", bytes(7) + b"\x80", b"Ns"], "the key -9223372036854775808; only"),
        ([b"\x8a\xff", b"\x7f" * 255], "an integer of 2,039 bits"),
        ([b"NN\x93"], "a name that is not a short text"),
        ([b"\x8f"], "the opcode EMPTY_SET"),
        ([b"N2"], "the opcode DUP"),
        ([b"\x82\1"], "the opcode EXT1"),
        ([b"\x97"], "the opcode NEXT_BUFFER"),
        ([b"\x96", bytes(6), b"\1\0"], "expected 281474976710656 bytes"),
        ([b"X", b"\xff" * 4], "expected 4294967295 bytes"),
        ([b"\xff"], "opcode .* unknown"),
        ([b"I" + b"9" * 5_000 + b"\n"], "cannot be read: Exceeds the limit"),
    ],
)
def test_what_is_no_pickle_is_refused(opcodes, reason):
    with pytest.raises(ValueError, match=f"its pickle .*{reason}") as error:
        loaded(program(*opcodes))
    assert len(str(error.value)) < 500


def test_attributes_of_a_dictionary_cannot_replace_its_methods():
    value = loaded(program(mapping(a=number(1)), mapping(get=b"N", items=b"N"), b"b"))
    assert value.get("a") == 1
    assert list(value.items()) == [("a", 1)]


def test_names_are_only_names():
    assert loaded(program(b"cno.such.module\nNothing\n")) == Named("no.such.module.Nothing")
