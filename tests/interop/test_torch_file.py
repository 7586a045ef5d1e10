"""Both layouts of torch's files: read as torch reads them, or refused."""

import io
import os
import pickle
import struct
import zipfile

import pytest
import torch
from fairseq_checkpoints import NEWEST, OLDEST
from interop.pickles import archive, members_of

from zipflm.interop import torch_file
from zipflm.interop.torch_file import read_torch_file

LEGACY = OLDEST.with_suffix(".legacy.pt")
VALUE = {
    "a": torch.arange(10.0),
    "b": torch.arange(12).view(3, 4).t(),
    "c": torch.ones(5, dtype=torch.bfloat16),
    "d": torch.arange(7, dtype=torch.uint8),
    "e": torch.arange(3.0).double(),
}
VALUE["view"] = VALUE["a"][2:9:2]


def save(path, value=VALUE, *, legacy=False):
    torch.save(value, path, _use_new_zipfile_serialization=not legacy)
    return path


def save_anew(path, members, **options):
    path.write_bytes(archive(members, **options))
    return path


def tensors(file):
    return {name: file.tensor(stored) for name, stored in file.contents.items()}


def require_value(found):
    assert found.keys() == VALUE.keys()
    for name, tensor in VALUE.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "stream"])
def test_tensors_come_back(legacy, tmp_path):
    require_value(tensors(read_torch_file(save(tmp_path / "m.pt", legacy=legacy))))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("padding", range(4))
def test_an_archive_that_was_packed_anew_holds_the_same(method, padding, tmp_path):
    members = members_of(save(tmp_path / "archive.pt"))
    members.insert(1, ("m/pad", bytes(padding)))  # so that numbers lie at any place
    members = [(name.replace("archive", "m"), content) for name, content in members]
    require_value(tensors(read_torch_file(save_anew(tmp_path / "m2.pt", members, method=method))))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "stream"])
def test_a_file_that_is_replaced_meanwhile_does_not_matter(legacy, tmp_path):
    file = read_torch_file(save(tmp_path / "m.pt", legacy=legacy))
    save(tmp_path / "other.pt", {name: tensor + 1 for name, tensor in VALUE.items()}, legacy=legacy)
    os.replace(tmp_path / "other.pt", tmp_path / "m.pt")
    require_value(tensors(file))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "stream"])
def test_the_file_is_opened_once_and_not_changed(legacy, tmp_path, monkeypatch):
    opened = []

    def counting_open(path, mode):
        opened.append(path)
        return open(path, mode)

    path = save(tmp_path / "m.pt", legacy=legacy)
    before = path.read_bytes()
    monkeypatch.setattr(torch_file, "open", counting_open, raising=False)
    for tensor in tensors(read_torch_file(path)).values():
        tensor.zero_()
    assert opened == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_changed_bit_in_any_member_is_found_and_named(method, tmp_path):
    members = members_of(NEWEST)
    path = save_anew(tmp_path / "m.pt", members, method=method)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        infos = [info for info in file.infolist() if info.file_size]
    for info in infos[::9]:
        place = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=f"cut short or damaged: member '{info.filename}'"):
            read_torch_file(path)


@pytest.mark.parametrize("name", ["archive/data.pkl", "archive/DATA.PKL", "ARCHIVE/data.pkl"])
def test_a_second_pickle_of_that_name_is_refused(name, tmp_path):
    members = members_of(save(tmp_path / "archive.pt"))
    save_anew(tmp_path / "m.pt", [*members, (name, pickle.dumps({}, 2))])
    with pytest.raises(ValueError, match=f"because it holds '{name}' twice"):
        read_torch_file(tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other/data.pkl", "an archive has one folder, but this one archive, other"),
        ("data.pkl", "an archive has one folder, but this one archive, data.pkl"),
        ("../archive/x", "an archive has one folder, but this one .., archive"),
        ("archive/data/0.pkl", "because it holds a second pickle, data/0.pkl"),
        ("archive/other.PKL", "because it holds a second pickle, other.PKL"),
        ("archive/constants.pkl", "a TorchScript program, not a checkpoint"),
        ("archive/code/model.py", "a TorchScript program, not a checkpoint"),
    ],
)
def test_members_of_another_kind_are_refused(name, reason, tmp_path):
    members = members_of(save(tmp_path / "archive.pt"))
    save_anew(tmp_path / "m.pt", [*members, (name, b"x")])
    with pytest.raises(ValueError, match=reason):
        read_torch_file(tmp_path / "m.pt")


def test_a_script_is_refused(tmp_path):
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "m.pt")
    with pytest.raises(ValueError, match="a TorchScript program, not a checkpoint"):
        read_torch_file(tmp_path / "m.pt")


def test_a_storage_that_is_missing_or_short_is_refused(tmp_path):
    members = dict(members_of(save(tmp_path / "archive.pt")))
    data = members.pop("archive/data/0")
    save_anew(tmp_path / "missing.pt", members.items())
    with pytest.raises(ValueError, match="the numbers stored under '0' are missing"):
        read_torch_file(tmp_path / "missing.pt")
    members["archive/data/0"] = data[:-4]
    save_anew(tmp_path / "short.pt", members.items())
    with pytest.raises(ValueError, match="'archive/data/0' has 36 bytes, not 40"):
        read_torch_file(tmp_path / "short.pt")


def test_another_byte_order_is_refused(tmp_path):
    members = dict(members_of(save(tmp_path / "archive.pt"))) | {"archive/byteorder": b"big"}
    save_anew(tmp_path / "m.pt", members.items())
    with pytest.raises(ValueError, match="written on a machine of another byte order, 'big'"):
        read_torch_file(tmp_path / "m.pt")


def stream_parts(path):
    """The five pickles of a stream, and what follows them."""
    stream = io.BytesIO(path.read_bytes())
    ends = [0]
    for _ in range(5):
        torch_file.TorchUnpickler().load(stream)
        ends.append(stream.tell())
    whole = stream.getvalue()
    pickles = [whole[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    return pickles, whole[ends[-1] :]


def join_stream(path, pickles, rest):
    path.write_bytes(b"".join(pickles) + rest)
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda keys: [], "its list of tensors lacks those stored under 0, "),
        (lambda keys: keys[1:], r"numbers are stored under .*, not \d"),
        (lambda keys: keys[:-1], "its list of tensors lacks"),
        (lambda keys: [*keys, keys[0]], "its list of tensors has '0' twice"),
        (lambda keys: [*keys, "x"], "its list of tensors has 'x' twice or for no tensor"),
        (lambda keys: [*keys[:-1], 3], "its list of tensors has 3 twice or for no tensor"),
        (lambda keys: [*keys[:-1], ["x"]], r"its list of tensors has \['x'\] twice"),
        (lambda keys: {}, "its list of tensors lacks"),
        (lambda keys: None, "its list of tensors lacks"),
    ],
    ids=["empty", "first", "last", "twice", "unknown", "number", "list", "dictionary", "none"],
)
def test_every_storage_of_a_stream_is_listed_once(change, reason, tmp_path):
    value = {str(i): torch.full((i + 1,), float(i)) for i in range(4)}
    pickles, rest = stream_parts(save(tmp_path / "m.pt", value, legacy=True))
    keys = pickle.loads(pickles[4])
    names = {key: str(i) for i, key in enumerate(keys)}
    for key, name in names.items():  # keys are addresses, which differ from run to run
        pickles[3] = pickles[3].replace(
            struct.pack("<I", len(key)) + key.encode(), struct.pack("<I", 1) + name.encode()
        )
    pickles[4] = pickle.dumps(change(list(names.values())), 2)
    with pytest.raises(ValueError, match=f"cut short or damaged: .*{reason}"):
        read_torch_file(join_stream(tmp_path / "m.pt", pickles, rest))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rest: rest[:-1], "are cut short"),
        (lambda rest: b"", "are cut short"),
        (lambda rest: rest + b"x", "1 bytes follow the last tensor"),
        (lambda rest: bytes([rest[0] + 1]) + rest[1:], r"numbers are stored under .*, not \d"),
    ],
    ids=["short", "empty", "long", "length"],
)
def test_every_storage_of_a_stream_is_whole(change, reason, tmp_path):
    pickles, rest = stream_parts(LEGACY)
    with pytest.raises(ValueError, match=f"cut short or damaged: .*{reason}"):
        read_torch_file(join_stream(tmp_path / "m.pt", pickles, change(rest)))


def test_a_stream_of_another_byte_order_or_program_is_refused(tmp_path):
    pickles, rest = stream_parts(LEGACY)
    big = [*pickles[:2], pickle.dumps({"little_endian": False}, 2), *pickles[3:]]
    with pytest.raises(ValueError, match="another byte order, 'big'"):
        read_torch_file(join_stream(tmp_path / "m.pt", big, rest))
    for place in (0, 1):
        other = [*pickles[:place], pickle.dumps(7, 2), *pickles[place + 1 :]]
        with pytest.raises(ValueError, match="no file of torch: a pickle of another program"):
            read_torch_file(join_stream(tmp_path / "m.pt", other, rest))


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "m.pt").write_bytes(b"")
    with pytest.raises(ValueError, match="it is empty"):
        read_torch_file(tmp_path / "m.pt")
