import io
import pickle
import sys
import zipfile
from decimal import Decimal

import pytest
import torch
from fairseq_checkpoints import CHECKPOINTS, NEWEST, OLDEST, contents

from zipflm.interop.fairseq_file import read_checkpoint

LEGACY = OLDEST.with_suffix(".legacy.pt")


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.name)
def test_every_style_and_age_is_read(path):
    file = read_checkpoint(path)
    assert file.options["arch"].startswith("transformer_lm")
    assert (file.options["task"], file.options["decoder_layers"]) == ("language_modeling", 3)
    assert file.weights["decoder.version"].item() in (2, 3)
    assert file.updates == 60


def test_zip_and_stream_hold_the_same():
    new, old = read_checkpoint(OLDEST), read_checkpoint(LEGACY)
    assert new.options == old.options
    assert all(torch.equal(old.weights[name], tensor) for name, tensor in new.weights.items())


def test_no_module_is_left_behind_or_imported():
    before = set(sys.modules)
    read_checkpoint(OLDEST)
    assert not {name for name in set(sys.modules) - before if name.startswith("fairseq")}


@pytest.mark.parametrize("path", [NEWEST, LEGACY], ids=["zip", "stream"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_refused(path, share, tmp_path):
    short = tmp_path / "short.pt"
    short.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"short\.pt: "):
        read_checkpoint(short)


class Hostile:
    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return open, (str(self.proof), "w")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "stream"])
@pytest.mark.parametrize("place", ["args", "model", "extra_state"])
def test_hostile_code_is_named_and_not_run(legacy, place, tmp_path):
    whole = contents() | {place: Hostile(tmp_path / "ran")}
    torch.save(whole, tmp_path / "evil.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match=r"evil\.pt: refused, because it names (_)?io\.open"):
        read_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_hostile_pickle_is_named_and_not_run(protocol, tmp_path):
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Hostile(tmp_path / "ran"), protocol))
    with pytest.raises(ValueError, match=r"refused, because it names (_)?io\.open"):
        read_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_a_second_pickle_in_the_archive_is_looked_at_too(tmp_path):
    evil = tmp_path / "evil.pt"
    evil.write_bytes(NEWEST.read_bytes())
    with zipfile.ZipFile(evil, "a") as archive:
        archive.writestr("other/data.pkl", pickle.dumps(Hostile(tmp_path / "ran"), 2))
    with pytest.raises(ValueError, match=r"names (_)?io\.open"):
        read_checkpoint(evil)


def test_an_unknown_class_is_refused_by_its_name(tmp_path):
    torch.save(contents() | {"extra_state": Decimal(1)}, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match="refused, because it names decimal.Decimal"):
        read_checkpoint(tmp_path / "odd.pt")


def packed_anew(path, out):
    """The same archive, compressed."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out


def test_an_archive_that_was_packed_anew_holds_the_same(tmp_path):
    before, after = (read_checkpoint(p) for p in (NEWEST, packed_anew(NEWEST, tmp_path / "m.pt")))
    assert all(torch.equal(after.weights[name], tensor) for name, tensor in before.weights.items())


def test_a_damaged_compressed_pickle_is_refused(tmp_path):
    path = packed_anew(NEWEST, tmp_path / "m.pt")
    with zipfile.ZipFile(path) as archive:
        start = next(m for m in archive.infolist() if m.filename.endswith("data.pkl")).header_offset
    whole = bytearray(path.read_bytes())
    whole[start + 100 : start + 200] = b"\xff" * 100
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"m\.pt: cut short or damaged"):
        read_checkpoint(path)


def archive_without_pickle():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"no checkpoint at all\n", bytes(1000), b"PK\x03\x04 and then nothing"]
    + [archive_without_pickle(), pickle.dumps([1, 2]), b"\x80\x02" + b"]" * 50],
)
def test_foreign_bytes_are_refused(data, tmp_path):
    (tmp_path / "foreign.pt").write_bytes(data)
    with pytest.raises(ValueError, match=r"foreign\.pt: "):
        read_checkpoint(tmp_path / "foreign.pt")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3), "it holds a Tensor"),
        ({"model": {"a": torch.zeros(1)}}, "neither args nor cfg"),
        ({"args": None, "model": {}}, "args holds no options, but NoneType"),
        ({"cfg": {"model": None}, "model": {}}, "cfg.model holds no options"),
        ({"args": {"arch": "x"}}, "no weights under model"),
        ({"args": {"arch": "x"}, "model": {"a": torch.tensor(1)}}, r"\['a'\] has the shape \(\)"),
        (
            {"args": {"arch": "x"}, "model": {"a": torch.zeros(1).expand(2**40)}},
            r"model\['a'\] has more numbers than the file holds",
        ),
        ({"args": {"arch": "x"}, "model": {"a": 3}}, r"model\['a'\] is a int, not a tensor"),
    ],
)
def test_other_files_of_torch_are_refused(value, message, tmp_path):
    torch.save(value, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=f"no fairseq checkpoint of a language model: .*{message}"):
        read_checkpoint(tmp_path / "other.pt")


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        read_checkpoint(tmp_path / "absent.pt")
