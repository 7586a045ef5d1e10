"""Small files that ask for much are refused, soon and in little memory."""

import struct
import zipfile

import pytest
import torch
from interop.limited import refusals, run_limited
from interop.pickles import (
    archive,
    checkpoint,
    dictionary,
    get,
    mapping,
    number,
    program,
    put,
    text,
)

from zipflm.interop.fairseq_file import read_checkpoint

MANY = 240_000
EMPTY = mapping(args=b"}", model=b"}")
NAMESPACE = b"cargparse\nNamespace\n"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
FLOATS = b"ctorch\nFloatStorage\n"


def doubled(times):
    """A tuple of two tuples of two tuples, each pair one and the same: 2**times in all."""
    return b")" + b"".join(put(i) + get(i) + b"\x86" for i in range(times))


def colliding(count):
    """Keys with the same hash, were they allowed."""
    modulus = 2**61 - 1
    numbers = ((i * modulus).to_bytes(16, "little", signed=True) for i in range(1, count))
    return dictionary([(b"\x8a\x10" + n, b"N") for n in numbers])


def stored_floats(count, key="0"):
    return b"(" + text("storage") + FLOATS + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(storage, *shape, strides):
    sizes = b"(" + b"".join(map(number, shape)) + b"t(" + b"".join(map(number, strides)) + b"t"
    return TENSOR + b"(" + storage + number(0) + sizes + b"\x89}tR"


def named_often(count, floats):
    """Many weights, all of them one."""
    first = tensor(stored_floats(floats), floats, strides=[1]) + put(0)
    again = [(text(f"decoder.layers.{i}.fc1.bias"), get(0)) for i in range(count)]
    state = dictionary([(text("decoder.version"), first), *again])
    return checkpoint(
        mapping(args=mapping(arch=text("transformer_lm")), model=state),
        members=[("archive/data/0", bytes(4 * floats))],
    )


def hostile_pickles():
    yield "an allocation", b"\x96\0\0\0\0\0\1\0\0"
    yield "a tuple of shared tuples as a key", program(b"}", doubled(100), b"Ns")
    yield "an endless tuple as a key", program(b"}", doubled(MANY // 2), b"Ns")
    yield "a deep tuple as a key", program(b"})", b"\x85" * MANY, b"Ns")
    yield "a deep list", program(b"]" * MANY, b"a" * (MANY - 1))
    yield "a deep dictionary", program((b"}" + number(1)) * MANY, b"}", b"s" * MANY)
    yield "marks", program(b"(" * 2 * MANY)
    yield "many containers", program(b"".join(b"}" + put(i) for i in range(MANY)))
    yield "many texts", program(text("a") * 1_000_000)
    yield "a long text", program(text("\u4e00" * 3_000_000))
    yield "a long integer", program(b"\x8b" + struct.pack("<i", 9_000_000), b"\x7f" * 9_000_000)
    yield "an integer in digits", program(b"L" + b"9" * 9_000_000 + b"L\n")
    yield "keys that collide", program(colliding(MANY))
    twice = text("a" * 10**6) + put(0) + text("a" * 10**6) + put(1)
    yield "long keys that are equal", program(twice, b"}(", (get(0) + get(1)) * MANY, b"u")
    yield "many names", program(b"".join(b"cm%d\nn\n" % i for i in range(400_000)))
    yield "long names", program(twice, (get(0) + get(1) + b"\x93") * 10**5)
    many = dictionary([(number(i), b"N") for i in range(10**5)])
    yield (
        "attributes set often",
        program(NAMESPACE, b")\x81", many, put(0), (get(0) + b"b") * 10**5),
    )
    long = b"(" + b"N" * 10**5 + b"t"
    yield "long arguments", program(long, put(0), (TENSOR + get(0) + b"R") * 10**5)


def hostile_archives():
    weights = dictionary([(text(f"w{i}"), b"N") for i in range(MANY - 9)])
    yield "many weights", checkpoint(mapping(args=b"}", model=weights))
    options = dictionary([(text(f"decoder_{i}"), number(1)) for i in range(MANY - 9)])
    yield "many options", checkpoint(mapping(args=options, model=b"}"))
    endless = tensor(stored_floats(1), 2**30, 2**30, strides=[0, 0])
    yield (
        "weights of one number",
        checkpoint(
            mapping(args=mapping(arch=text("transformer_lm")), model=mapping(w=endless)),
            members=[("archive/data/0", bytes(4))],
        ),
    )
    yield "one weight of many names", named_often(5_000, 250_000)
    members = [(f"archive/data/{i}", b"") for i in range(90_000)]
    yield "many members", checkpoint(EMPTY, members=members)
    zeros = [("archive/data.pkl", program(EMPTY)), ("archive/data/0", bytes(2**27))]
    yield "a bomb", archive(zeros, method=zipfile.ZIP_DEFLATED)
    idle = [("archive/data.pkl", program(b"N0" * 10**7, b"N"))]
    yield "a bomb of a pickle", archive(idle, method=zipfile.ZIP_DEFLATED)
    yield "a long pickle", checkpoint(text("\0" * (17 * 2**20)))


@pytest.mark.slow
def test_a_small_file_cannot_take_much_time_or_memory(tmp_path):
    paths = {}
    for name, data in [*hostile_pickles(), *hostile_archives()]:
        paths[name] = tmp_path / f"m{len(paths)}.pt"
        paths[name].write_bytes(data)
    found = dict(zip(paths, run_limited(refusals, list(paths.values())), strict=True))
    wrong = {
        name: message
        for name, message in found.items()
        if not isinstance(message, str) or f"{paths[name]}: " not in message or len(message) > 3_000
    }
    assert not wrong


def test_a_file_of_thousands_of_tensors_is_read(tmp_path):
    state = {f"decoder.layers.{i}.fc1.bias": torch.full((3,), float(i)) for i in range(2_000)}
    moments = {i: {"exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)} for i in range(2_000)}
    whole = {"args": {"arch": "transformer_lm"}, "model": state, "last_optimizer_state": moments}
    torch.save(whole, tmp_path / "m.pt")
    weights = read_checkpoint(tmp_path / "m.pt").weights
    assert all(torch.equal(weights[name], tensor) for name, tensor in state.items())
