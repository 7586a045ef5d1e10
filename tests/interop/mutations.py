"""Files that were damaged by chance or changed on purpose, made from good ones."""

import argparse
import io
import pickletools
import struct

import torch
from interop.omegaconf_files import as_omegaconf, omegaconf_classes
from interop.pickles import archive, members_of

MODEL_OPTIONS = ("decoder_", "adaptive_", "char", "tie_", "share_", "dropout", "arch", "tokens_")

HOSTILE_NAMES = [b"os\nsystem", b"builtins\neval", b"fairseq.x\nY", b"argparse\nNamespace"]
HOSTILE_NAMES += [
    b"torch._utils\n_rebuild_tensor_v2",
    b"omegaconf.nodes\nAnyNode",
    b"\x1b[2J\n\xff",
]
HOSTILE_NAMES += [b"collections\nOrderedDict", b"torch\nFloatStorage", b"a" * 300 + b"\nb"]
EDGES = [0, 1, -1, 2, 3, 127, 255, 256, 2**15, 2**31 - 1, -(2**31)]
TEXTS = ["", "0", "data", "args", "cfg", "model", "\x1b[2J", "\0", "\ud800", "x" * 5_000, "None"]
TEXTS += ["decoder.version", "decoder_layers", "transformer_lm", "${task.data}", "???", "(" * 999]


def damaged(rng, data):
    """What a disk or a network might do to a file."""
    return rng.choice([_flip_bits, _cut, _overwrite, _remove, _repeat, _exchange])(rng, data)


def _flip_bits(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 10, 1_000])):
        changed[_place(rng, data)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _place(rng, data):
    """Beginning and end, where sizes and names are, as often as all the rest."""
    edge = min(len(data), 30_000)
    return rng.choice(
        [rng.randrange(len(data)), rng.randrange(edge), len(data) - 1 - rng.randrange(edge)]
    )


def _span(rng, data):
    start = _place(rng, data)
    return start, min(len(data), start + rng.choice([1, 4, 100, 5_000]))


def _cut(rng, data):
    return data[: _place(rng, data)]


def _overwrite(rng, data):
    start, end = _span(rng, data)
    return data[:start] + rng.choice([b"\0", b"\xff", b"P"]) * (end - start) + data[end:]


def _remove(rng, data):
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _repeat(rng, data):
    start, end = _span(rng, data)
    return data[:end] + data[start:end] + data[end:]


def _exchange(rng, data):
    """Two spans of one length change places, as when blocks of a file are mixed up."""
    (a, end), b = _span(rng, data), _place(rng, data)
    if a > b:
        a, b = b, a
    length = min(abs(end - a), b - a, len(data) - b)
    return (
        data[:a]
        + data[b : b + length]
        + data[a + length : b]
        + data[a : a + length]
        + data[b + length :]
    )


def crafted(rng, path):
    """An archive that is whole, but holds something else: checksums do not help against these."""
    members = members_of(path)
    change = rng.choice(
        [_change_pickle, _change_pickle, _change_pickle, _swap_members, _add_member]
    )
    return archive(change(rng, members), method=rng.choice([0, 0, 8]))


def altered(rng, whole):
    """The bytes of a checkpoint with other options or weights, well-formed in every way."""
    state, cfg = dict(whole["model"]), whole.get("cfg")
    options = dict(cfg["model"] if cfg else vars(whole["args"]))
    known = [name for name in options if name.startswith(MODEL_OPTIONS)]
    for _ in range(rng.choice([1, 1, 2, 5])):
        match rng.randrange(3):
            case 0:
                _alter_entry(rng, state, rng.choice(list(state)), _odd_tensor)
            case 1:
                _alter_entry(rng, options, rng.choice(known), _odd_value)
            case _:
                _alter_entry(rng, options, rng.choice(list(options)), _odd_value)
    parts = {"model": state, "optimizer_history": whole["optimizer_history"]}
    file = io.BytesIO()
    with omegaconf_classes():
        if cfg:
            cfg = cfg | {"model": options}
            parts["cfg"] = as_omegaconf(cfg) if rng.random() < 0.3 else cfg
        else:
            parts["args"] = argparse.Namespace()
            vars(parts["args"]).update(options)
        if rng.random() < 0.1:
            _alter_entry(rng, parts, rng.choice(list(parts)), _odd_value)
        torch.save(parts, file)
    return file.getvalue()


def _alter_entry(rng, entries, name, odd):
    if name not in entries:
        return  # it was the last change that took it away
    match rng.randrange(6):
        case 0:
            del entries[name]
        case 1:
            entries[rng.choice(list(entries))] = entries[name]
        case 2:
            entries[rng.choice([*TEXTS, f"{name}0", f"0.{name}", rng.randrange(9)])] = entries[name]
        case _:
            entries[name] = odd(rng, entries[name])


def _odd_value(rng, value):
    values = [None, True, False, *EDGES, *TEXTS, 0.5, -0.5, 1e-300, 1e300, float("nan"), 10**30]
    values += [[], [1], {}, (value,), {"a": value}, torch.zeros(2), b"x", f"{value},{value}"]
    values += ["1", "60", "200,60", "60,60", "0", "-5,7", "[(1, 4)]", "[(0, 0)]", "[]", "9" * 30]
    if isinstance(value, int | float):
        values += [value + 1, value * 2, value * 1_000_000, -value, float(value)] * 3
    return rng.choice(values)


def _odd_tensor(rng, tensor):
    if not isinstance(tensor, torch.Tensor):
        return torch.zeros(3)
    return rng.choice(
        [
            lambda: tensor.half(),
            lambda: tensor.double(),
            lambda: tensor.to(torch.int8),
            lambda: tensor[:-1],
            lambda: tensor[None],
            lambda: tensor.flatten(),
            lambda: tensor.t() if tensor.ndim == 2 else tensor.sum(),
            lambda: tensor + 1,
            lambda: tensor * float("nan"),
            lambda: torch.cat([tensor, tensor]),
            lambda: tensor[:1].expand(2**40, *tensor.shape[1:]),
            lambda: tensor[:1].expand_as(tensor),
            lambda: torch.zeros(0),
            lambda: _odd_value(rng, 3),
        ]
    )()


def crafted_stream(rng, data, start, end):
    """A stream whose contents, a pickle at this place, were changed."""
    return data[:start] + changed_pickle(rng, data[start:end]) + data[end:]


def _change_pickle(rng, members):
    return [
        (name, changed_pickle(rng, content) if name.endswith("data.pkl") else content)
        for name, content in members
    ]


def _swap_members(rng, members):
    a, b = rng.sample(range(len(members)), 2)
    members[a], members[b] = (members[a][0], members[b][1]), (members[b][0], members[a][1])
    return members


def _add_member(rng, members):
    name = rng.choice([name for name, _ in members])
    name = rng.choice(
        [name, name.upper(), "../" + name, name + ".pkl", "archive/code/x", name + "0"]
    )
    members.insert(rng.randrange(len(members)), (name, rng.randbytes(rng.randrange(100))))
    return members


def changed_pickle(rng, data):
    """A pickle with some opcodes gone, moved, repeated, exchanged or made up."""
    if rng.random() < 0.1:
        return b"\x80\x02" + b"".join(_opcode(rng) for _ in range(rng.randrange(300))) + b"."
    codes = _opcodes(data)
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        place = rng.randrange(1, len(codes))
        match rng.randrange(5):
            case 0:
                del codes[place]
            case 1:
                codes.insert(place, _opcode(rng))
            case 2:
                codes[place] = _opcode(rng)
            case 3:
                codes.insert(rng.randrange(1, len(codes)), codes[place])
            case _:
                other = rng.randrange(1, len(codes))
                codes[place], codes[other] = codes[other], codes[place]
    return b"".join(codes)


def _opcodes(data):
    places = [place for _, _, place in pickletools.genops(io.BytesIO(data))]
    return [data[a:b] for a, b in zip(places, [*places[1:], len(data)], strict=True)]


def _opcode(rng):
    text = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    return rng.choice(
        [
            bytes([rng.randrange(256)]),
            rng.choice([b"}", b"]", b")", b"(", b"N", b"\x88", b"\x89", b"0", b"1", b"2", b"Q"]),
            rng.choice([b"t", b"l", b"d", b"a", b"e", b"s", b"u", b"R", b"b", b"o", b"\x81"]),
            rng.choice([b"\x85", b"\x86", b"\x87", b"\x93", b"\x92", b"\x94", b"\x8f", b"\x90"]),
            b"J" + struct.pack("<i", rng.choice(EDGES)),
            b"\x8a\x09" + rng.randbytes(9),
            b"G" + struct.pack(">d", rng.choice([0.0, -1.0, 0.5, 1e300, float("nan")])),
            b"X" + struct.pack("<I", len(text)) + text,
            b"\x96" + struct.pack("<Q", 2 ** rng.randrange(64)),
            rng.choice([b"h", b"q"]) + bytes([rng.randrange(256)]),
            rng.choice([b"j", b"r"]) + struct.pack("<I", rng.randrange(2_000)),
            rng.choice([b"c", b"i"]) + rng.choice(HOSTILE_NAMES) + b"\n",
        ]
    )
