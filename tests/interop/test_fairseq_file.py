import argparse
import collections
import os
import pickle
import sys
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from fairseq_checkpoints import CHECKPOINTS, DICT, NEWEST, OLDEST, contents
from fuzz.cases import tried
from fuzz.mutations import damaged
from interop.omegaconf_files import Activation, as_omegaconf, omegaconf_classes

import zipflm.cli
from zipflm.interop.fairseq import read_model
from zipflm.interop.fairseq_file import read_checkpoint

LEGACY = OLDEST.with_suffix(".legacy.pt")


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.name)
def test_reads_checkpoints_of_all_versions(path):
    file = read_checkpoint(path)
    assert file.options["arch"].startswith("transformer_lm")
    assert (file.options["task"], file.options["decoder_layers"]) == ("language_modeling", 3)
    assert file.weights["decoder.version"].item() in (2, 3)
    assert file.updates == 60


def test_zip_and_stream_are_equal():
    new, old = read_checkpoint(OLDEST), read_checkpoint(LEGACY)
    assert new.options == old.options
    assert all(torch.equal(old.weights[name], tensor) for name, tensor in new.weights.items())


def test_reads_compressed_archive(tmp_path):
    with zipfile.ZipFile(NEWEST) as file, zipfile.ZipFile(tmp_path / "m.pt", "w", 8) as packed:
        for name in file.namelist():
            packed.writestr(name, file.read(name))
    weights = read_checkpoint(tmp_path / "m.pt").weights
    expected = read_checkpoint(NEWEST).weights
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


class Hostile:
    def __init__(self, call, *arguments):
        self.made_by = call, arguments

    def __reduce__(self):
        return self.made_by


def save_hostile(path, proof):
    torch.save(contents() | {"extra_state": Hostile(open, str(proof), "w")}, path)


def save_hostile_stream(path, proof):
    whole = contents() | {"args": Hostile(os.system, f"touch {proof}")}
    torch.save(whole, path, _use_new_zipfile_serialization=False)


def save_hostile_pickle(path, proof):
    path.write_bytes(pickle.dumps(Hostile(os.system, f"touch {proof}")))


def save_hidden_methods(path, proof):
    whole = OrderedDict(model={})
    whole.get = "no method"
    torch.save(whole, path)


def save_cut_archive(path, proof):
    path.write_bytes(NEWEST.read_bytes()[:-1_000])


def save_cut_stream(path, proof):
    path.write_bytes(LEGACY.read_bytes()[:-1_000])


def save_changed_bit(path, proof):
    whole = bytearray(NEWEST.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)


def save_nothing(path, proof):
    path.touch()


def save_archive(path, proof):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "nothing here")


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (save_hostile, r"refers to (_)?io\.open"),
        (save_hostile_stream, r"refers to posix\.system"),
        (save_hostile_pickle, "not a checkpoint"),
        (save_hidden_methods, "it has neither args nor cfg"),
        (save_cut_archive, "truncated"),
        (save_cut_stream, "truncated"),
        (save_changed_bit, "wrong checksum for member 'archive/data/"),
        (save_nothing, "not a checkpoint"),
        (save_archive, "the archive has no data.pkl"),
    ],
)
def test_rejects_hostile_damaged_and_other_files(save, message, tmp_path, monkeypatch, capsys):
    proof, out = tmp_path / "ran", tmp_path / "run"
    save(tmp_path / "m.pt", proof)
    command = ["zipflm", "import", tmp_path / "m.pt", out, "--dict", DICT]
    monkeypatch.setattr(sys, "argv", [*map(str, command)])
    with pytest.raises(SystemExit) as exit:
        zipflm.cli.main()
    assert exit.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(ValueError, match=f"m.pt: .*{message}"):
        read_checkpoint(tmp_path / "m.pt")
    assert not proof.exists() and not out.exists()


@pytest.mark.slow
@pytest.mark.timeout(0)  # --fuzz-seconds is the limit
@pytest.mark.parametrize("path", [NEWEST, LEGACY], ids=["zip", "stream"])
def test_fuzz_checkpoints(path, tmp_path, fuzz_seconds):
    expected = read_model(path, DICT)

    def attempt(rng):
        (tmp_path / "m.pt").write_bytes(damaged(rng, path.read_bytes()))
        try:
            model = read_model(tmp_path / "m.pt", DICT)
        except ValueError as error:
            assert str(error).startswith(f"{tmp_path / 'm.pt'}: ")
            return "refused"
        if path == NEWEST:  # a stream has no checksums, so weights may change
            assert model.config == expected.config
            assert all(torch.equal(t, expected.weights[name]) for name, t in model.weights.items())
        return "imported"

    assert tried(attempt, 2019, fuzz_seconds)["refused"] > 10


def read_with(path, **changes):
    torch.save(contents() | changes, path)
    return read_checkpoint(path)


@pytest.mark.parametrize("typed", [False, True], ids=["untyped", "typed"])
def test_reads_omegaconf_containers(typed, tmp_path):
    cfg = contents()["cfg"]
    cfg["model"]["activation_fn"] = Activation.RELU
    cfg["model"]["tokens_per_sample"] = "${task.tokens_per_sample}"
    cfg["model"]["decoder_layerdrop"] = "???"
    cfg["task"]["data"] = "${env:HOME}"  # dangling, left as it is
    with omegaconf_classes():
        file = read_with(tmp_path / "m.pt", cfg=as_omegaconf(cfg, typed=typed))
    expected = read_checkpoint(NEWEST)
    del expected.options["decoder_layerdrop"]
    assert file.options == expected.options | {"data": "${env:HOME}"}
    assert file.model_options == expected.model_options - {"decoder_layerdrop"}


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "omegaconf"])
def test_reads_namespace_sections(wrapped, tmp_path):
    cfg = contents()["cfg"]
    arch, task = cfg["model"].pop("_name"), cfg["task"].pop("_name")
    flat = argparse.Namespace(**cfg["task"] | cfg["model"] | {"arch": arch, "task": task})
    cfg |= {"model": flat, "task": flat}
    with omegaconf_classes():
        file = read_with(tmp_path / "m.pt", cfg=as_omegaconf(cfg) if wrapped else cfg)
    assert file.options == read_checkpoint(NEWEST).options
    assert file.model_options == frozenset()


def test_options_named_like_dict_methods(tmp_path):
    names = ["keys", "items", "get", "pop", "__class__", "__dict__", "_name"]
    options = {"arch": "transformer_lm"} | {name: 1 for name in names}
    args = argparse.Namespace()
    vars(args).update(options)
    assert read_with(tmp_path / "m.pt", args=args, cfg=None).options == options


def test_ignores_training_state(tmp_path):
    extra = {"best": np.float64(3.5), "counts": collections.defaultdict(list, a=[1]), "type": int}
    assert read_with(tmp_path / "m.pt", extra_state=extra).updates == 60
    assert read_with(tmp_path / "m.pt", optimizer_history=[{"num_updates": None}]).updates == 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3), "it contains a Tensor"),
        ({"model": {"a": torch.zeros(1)}}, "neither args nor cfg"),
        ({"args": None, "model": {}}, "args has no named options"),
        ({"args": {3: 4}, "model": {}}, "args has no named options"),
        ({"cfg": {"model": None}, "model": {}}, "cfg.model has no named options"),
        ({"args": {"arch": "x"}}, "no weights under model"),
        ({"args": {"arch": "x"}, "model": {"a": 3}}, r"model\['a'\] is not a tensor"),
    ],
)
def test_rejects_other_torch_files(value, message, tmp_path):
    torch.save(value, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=f"not a fairseq checkpoint of a language .*: .*{message}"):
        read_checkpoint(tmp_path / "other.pt")
