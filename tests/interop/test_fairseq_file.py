"""Options and weights are found in files of every age, and nothing in a file is run."""

import argparse
import collections
import io
import pickle
import sys
import zipfile
from decimal import Decimal

import pytest
import torch
from fairseq_checkpoints import CHECKPOINTS, NEWEST, OLDEST, contents
from interop.omegaconf_files import Activation, as_omegaconf, omegaconf_classes
from interop.pickles import archive, members_of

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


@pytest.mark.parametrize("name", ["archive/data.pkl", "archive/DATA.PKL", "other/data.pkl"])
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_a_second_pickle_does_not_hide_behind_a_harmless_one(name, first, tmp_path):
    members = members_of(NEWEST)
    evil = (name, pickle.dumps(Hostile(tmp_path / "ran"), 2))
    members = [evil, *members] if first else [*members, evil]
    (tmp_path / "evil.pt").write_bytes(archive(members))
    with pytest.raises(ValueError, match=r"evil\.pt: (refused, because it holds|no file of torch)"):
        read_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_an_unknown_class_is_refused_by_its_name(tmp_path):
    torch.save(contents() | {"extra_state": Decimal(1)}, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match="refused, because it names decimal.Decimal"):
        read_checkpoint(tmp_path / "odd.pt")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "stream"])
def test_a_request_for_much_memory_is_refused_in_one_sentence(legacy, tmp_path):
    data = b"\x96\0\0\0\0\0\1\0\0"
    (tmp_path / "m.pt").write_bytes(data if legacy else archive([("archive/data.pkl", data)]))
    with pytest.raises(ValueError, match=r"m\.pt: (cut short, damaged|not a checkpoint)") as error:
        read_checkpoint(tmp_path / "m.pt")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("member", ["data/2", "data/119", "data.pkl", "version"])
def test_a_changed_bit_is_found_and_named(member, tmp_path):
    whole = bytearray(NEWEST.read_bytes())
    with zipfile.ZipFile(NEWEST) as file:
        info = file.getinfo(f"archive/{member}")
    start = whole.index(b"archive/" + member.encode(), info.header_offset)
    start += len(info.filename) + int.from_bytes(whole[start - 2 : start], "little")  # and padding
    whole[start + info.file_size // 2] ^= 1
    (tmp_path / "m.pt").write_bytes(whole)
    with pytest.raises(ValueError, match=f"m.pt: cut short or damaged: member 'archive/{member}'"):
        read_checkpoint(tmp_path / "m.pt")


def read_with(path, **changes):
    torch.save(contents() | changes, path)
    return read_checkpoint(path)


@pytest.mark.parametrize("typed", [False, True], ids=["untyped", "typed"])
def test_options_in_containers_of_omegaconf_are_the_same(typed, tmp_path):
    cfg = contents()["cfg"]
    cfg["model"]["activation_fn"] = Activation.RELU
    cfg["model"]["tokens_per_sample"] = "${task.tokens_per_sample}"
    cfg["model"]["decoder_layerdrop"] = "???"
    with omegaconf_classes():
        file = read_with(tmp_path / "m.pt", cfg=as_omegaconf(cfg, typed=typed))
    expected = read_checkpoint(NEWEST)
    del expected.options["decoder_layerdrop"]
    assert file.options == expected.options
    assert file.model_options == expected.model_options - {"decoder_layerdrop"}


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "omegaconf"])
def test_a_section_that_is_a_namespace_holds_the_flat_list(wrapped, tmp_path):
    cfg = contents()["cfg"]
    arch, task = cfg["model"].pop("_name"), cfg["task"].pop("_name")
    flat = argparse.Namespace(**cfg["task"] | cfg["model"] | {"arch": arch, "task": task})
    cfg |= {"model": flat, "task": flat}
    with omegaconf_classes():
        file = read_with(tmp_path / "m.pt", cfg=as_omegaconf(cfg) if wrapped else cfg)
    assert file.options == read_checkpoint(NEWEST).options
    assert file.model_options == frozenset()


def test_options_named_like_methods_of_a_dictionary_are_options(tmp_path):
    names = ["keys", "items", "get", "pop", "__class__", "__dict__", "_name"]
    options = {"arch": "transformer_lm"} | {name: 1 for name in names}
    args = argparse.Namespace()
    vars(args).update(options)
    file = read_with(tmp_path / "m.pt", args=args, cfg=None)
    assert file.options == options


def test_attributes_named_like_methods_of_a_dictionary_are_ignored(tmp_path):
    state, model = collections.OrderedDict(contents()["model"]), collections.OrderedDict()
    model.update(contents()["cfg"]["model"])
    for value in (state, model):
        value.get = value.keys = value.values = "none"
    cfg = contents()["cfg"] | {"model": model}
    file = read_with(tmp_path / "m.pt", model=state, cfg=cfg)
    assert file.options == read_checkpoint(NEWEST).options
    assert list(file.weights) == list(state)


@pytest.mark.parametrize("name", [3, True], ids=str)
def test_options_without_a_name_are_refused(name, tmp_path):
    cfg = contents()["cfg"]
    cfg["model"][name] = "x"
    with pytest.raises(ValueError, match=f"cfg.model holds no options: one has the name {name}"):
        read_with(tmp_path / "m.pt", cfg=cfg)


def test_an_option_may_be_a_book(tmp_path):
    cfg = contents()["cfg"]
    cfg["task"]["data"] = "\x1b[31m" * 200_000
    assert read_with(tmp_path / "m.pt", cfg=cfg).options["data"] == cfg["task"]["data"]


@pytest.mark.parametrize("updates", [-1, 2**70, "60", None, 3.5, [1]], ids=str)
def test_a_number_of_updates_that_is_none_counts_as_zero(updates, tmp_path):
    history = [{"num_updates": updates}]
    assert read_with(tmp_path / "m.pt", optimizer_history=history).updates == 0


def archive_without_pickle():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"no checkpoint at all\n", bytes(1000), b"PK\x03\x04 and then nothing"]
    + [archive_without_pickle(), pickle.dumps([1, 2]), b"\x80\x02" + b"]" * 50],
    ids=["nothing", "text", "zeros", "a cut archive", "an archive", "a list", "a deep list"],
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
        (
            {"args": {}, "model": {"\x1b[2J": torch.tensor(1)}},
            r"model\['\\x1b\[2J'\] has the shape \(\)",
        ),
        (
            {"args": {}, "model": dict.fromkeys(["a", "b", "c"], torch.zeros(9))},
            "its weights are 108 bytes, made of only 36 in the file",
        ),
        ({"args": {}, "model": {3: torch.zeros(1)}}, "one of its weights has the name 3"),
        ({"cfg": [1], "model": {}}, "cfg holds no options, but list"),
    ],
)
def test_other_files_of_torch_are_refused(value, message, tmp_path):
    torch.save(value, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=f"no fairseq checkpoint of a language model: .*{message}"):
        read_checkpoint(tmp_path / "other.pt")


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        read_checkpoint(tmp_path / "absent.pt")
