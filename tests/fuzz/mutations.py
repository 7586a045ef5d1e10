"""Random damage for files: bytes, lines and JSON, as disks, tools or attackers leave them."""

import json
import os

_WHOLE = [0, 1, -1, 2, 3, 255, 256, 65_535, 2**31 - 1, 2**31, 2**53 + 1, -(2**63), 2**64, 10**30]
_REAL = [0.0, -0.0, 0.5, -0.5, 1e-300, 1e300, 1e18, 3.0]
_TEXTS = ["", "0", "x", "none", "\0", "\ud800", "\x1b[2J", "a\nb", "../x", "/etc/passwd"]
_TEXTS += ["x" * 5_000]
# JSON that `json.dumps` would not write.
_LITERALS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1E400", "", "9" * 400]
_LITERALS += ["[" * n + "]" * n for n in (3, 500, 990, 50_000)] + ['{"a":' * 500 + "1" + "}" * 500]
_LITERALS += ["01", "+1", ".5", "1.", "0x10", "'a'", '"\\ud800"', "tru", '"a', "-", "1.0", "1e0"]


def damaged(rng, data):
    """Flip, truncate, remove, repeat, insert, overwrite or swap bytes."""
    change = rng.choice(
        [_flipped, _flipped, _cut, _removed, _repeated, _inserted, _overwritten, _exchanged]
    )
    return change(rng, data) if data else rng.randbytes(rng.randrange(50))


def _span(rng, data):
    """Return a random start and end, half of the time near the beginning."""
    start = rng.choice([rng.randrange(len(data)), rng.randrange(min(len(data), 300))])
    return start, min(len(data), start + rng.choice([1, 1, 2, 8, 100]))


def _flipped(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 3, 50])):
        changed[_span(rng, data)[0]] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng, data):
    return data[: rng.choice([0, 1, len(data) - 1, rng.randrange(len(data))])]


def _removed(rng, data):
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _repeated(rng, data):
    start, end = _span(rng, data)
    return rng.choice([data + data, data[:end] + data[start:end] + data[end:]])


def _inserted(rng, data):
    start, _ = _span(rng, data)
    odd = [b"\0", b"\xff", b"\n", b" ", b"\r\n", b"\xef\xbb\xbf", b"\xed\xa0\x80", rng.randbytes(9)]
    return data[:start] + rng.choice(odd) + data[start:]


def _overwritten(rng, data):
    start, end = _span(rng, data)
    return data[:start] + rng.choice([b"\0", b"\xff", b"9", b"-"]) * (end - start) + data[end:]


def _exchanged(rng, data):
    """Swap two pieces of the same length."""
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    n = min(rng.choice([1, 4, 8, 100]), b - a, len(data) - b)
    return data[:a] + data[b : b + n] + data[a + n : b] + data[a : a + n] + data[b + n :]


def altered_lines(rng, data):
    """Remove, repeat, move or damage lines, or change the number at their end."""
    lines = data.split(b"\n")
    for _ in range(rng.choice([1, 1, 2, 5])):
        place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(6):
            case 0 if len(lines) > 1:
                del lines[place]
            case 1:
                lines.insert(other, lines[place])
            case 2:
                lines[place], lines[other] = lines[other], lines[place]
            case 3:
                lines[place] = damaged(rng, lines[place])
            case 4:
                lines[place] += rng.choice(
                    [b"\r", b" ", b"\t", b" 7", b"\xc2\xa0", b"\xe2\x80\xa8"]
                )
            case _:
                numbers = [b"-1", b"0", b"1e3", b"9" * 30, b"\xd9\xa3", b"", b"+5", b"5_0", b"1.0"]
                head = lines[place].rpartition(b" ")[0]
                lines[place] = head + b" " + rng.choice(numbers)
    return b"\n".join(lines)


def altered_json(rng, data):
    """Remove, add, duplicate or change fields of a JSON value."""
    value = json.loads(data)
    literals = {}
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        value = _altered(rng, value, literals)
    text = json.dumps(value, indent=rng.choice([None, 1]))
    for mark, literal in literals.items():
        text = text.replace(json.dumps(mark), literal)
    return text.encode("utf-8")


def altered_json_lines(rng, data):
    lines = data.split(b"\n")
    place = rng.randrange(len(lines) - 1)
    lines[place] = altered_json(rng, lines[place]).replace(b"\n", b"")
    return b"\n".join(lines)


def _altered(rng, value, literals):
    """Change one place at any depth."""
    is_leaf = not isinstance(value, dict | list) or not value
    if is_leaf or rng.random() < 0.05:
        return _odd(rng, value, literals)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value = value.copy()
    if rng.random() < 0.6 or (isinstance(value[key], dict) and rng.random() < 0.8):
        value[key] = _altered(rng, value[key], literals)
    elif isinstance(value, list):
        value.insert(key, rng.choice([value[key], _odd(rng, value[key], literals)]))
    else:
        match rng.randrange(4):
            case 0:
                del value[key]
            case 1:
                value[rng.choice([*_TEXTS, f"{key}s", key.upper(), "kind"])] = value[key]
            case 2:
                value[key] = value[rng.choice(list(value))]
            case _:  # a duplicate key before the original
                mark = f"literal {len(literals)}"
                first = json.dumps(_odd(rng, value[key], {}))
                literals[mark] = f"{first}, {json.dumps(key)}: {json.dumps(value[key])}"
                value[key] = mark
    return value


def _odd(rng, value, literals):
    if rng.random() < 0.25:
        mark = f"literal {len(literals)}"
        literals[mark] = rng.choice(_LITERALS)
        return mark
    if isinstance(value, int | float) and rng.random() < 0.6:
        return rng.choice(
            [-value, value + 1, value - 1, value * 2, value / 3, float(value), *_WHOLE]
        )
    if isinstance(value, str) and value and rng.random() < 0.4:
        return rng.choice([value[:-1], value + "x", value.upper(), value[::-1], f" {value}"])
    return rng.choice(
        [None, True, False, [], {}, [value], {"kind": value}, *_WHOLE, *_REAL, *_TEXTS]
    )


def replace_file(rng, path):
    """Remove a file, or replace it by something that is not a file."""
    path.unlink()
    put_in_place(path, rng.choice(["nothing", *_NON_FILES]))


_NON_FILES = ["folder", "pipe", "broken link", "link loop", "device"]


def put_in_place(path, kind):
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "broken link":
            path.symlink_to(path.with_name("nothing"))
        case "link loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")


def put_back(path, data):
    """Restore a file, whatever is in its place."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(data)
