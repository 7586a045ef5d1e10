"""Pickles and archives put together by hand, as no program would write them."""

import io
import struct
import warnings
import zipfile

PROTOCOL = b"\x80\x02"
STOP = b"."


def text(value):
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number(value):
    return b"J" + struct.pack("<i", value)


def put(index):
    return b"r" + struct.pack("<I", index)


def get(index):
    return b"j" + struct.pack("<I", index)


def dictionary(entries):
    """From opcodes that make the keys to opcodes that make the values."""
    return b"}(" + b"".join(key + value for key, value in entries) + b"u"


def mapping(**entries):
    return dictionary([(text(name), value) for name, value in entries.items()])


def program(*opcodes):
    return PROTOCOL + b"".join(opcodes) + STOP


def archive(members, *, method=zipfile.ZIP_STORED):
    """The bytes of a zip file; `members` are pairs, so that a name can occur twice."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as out:
        warnings.simplefilter("ignore")  # names that occur twice
        for name, content in members:
            out.writestr(zipfile.ZipInfo(name), content, method)  # which has no date
    return file.getvalue()


def checkpoint(*opcodes, members=()):
    """An archive around one pickle, as `torch.save` would make it."""
    return archive([("archive/data.pkl", program(*opcodes)), *members])


def members_of(path):
    """Names and contents of an archive's members."""
    with zipfile.ZipFile(path) as file:
        return [(name, file.read(name)) for name in file.namelist()]
