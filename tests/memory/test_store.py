import errno
import json
import os
import shutil
from contextlib import suppress
from itertools import count

import loaded_models
import numpy as np
import pytest
import torch
from loaded_models import loaded, on_disk
from memory_reference import unit, with_neighbors
from training_runs import config_of

from zipflm.data.folder import DataFolder
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.memory import building, neighbors
from zipflm.memory.building import build
from zipflm.memory.mixing import Mixture
from zipflm.memory.neighbors import Neighbors, NeighborSettings, exact_search
from zipflm.memory.specs import open_memories
from zipflm.memory.store import KEYS_FILE, VALUES_FILE, Store
from zipflm.presets.rivals import with_decoder
from zipflm.runs.load import load_run

CPU = ScoringOptions(device="cpu", batch_tokens=64)


@pytest.fixture(scope="module")
def run(lm, tmp_path_factory):
    return load_run(on_disk(lm, tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture(scope="module")
def store(run, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("store") / "store"
    build(run, data, out, dtype="float32", options=CPU)
    return out


def copied(store, tmp_path):
    return shutil.copytree(store, tmp_path / "copy")


def test_exact_search_does_not_depend_on_the_block_size(monkeypatch):
    draw = np.random.default_rng(0)
    keys, queries = unit(draw.normal(size=(6400, 8))), unit(draw.normal(size=(30, 8)))
    expected = -np.sort(-(queries @ keys.T))[:, :7]
    for most in (1 << 26, 600):  # the first in one block, by groups
        monkeypatch.setattr(neighbors, "_max_elements", lambda device, most=most: most)
        cosines, rows = exact_search(keys.astype(np.float32), torch.from_numpy(queries).float(), 7)
        np.testing.assert_allclose(cosines, expected, atol=1e-6)
        np.testing.assert_allclose((queries[:, None] * keys[rows]).sum(2), expected, atol=1e-6)


@pytest.mark.gpu
def test_exact_search_on_a_gpu_is_exact_to_float32():
    generator = torch.Generator("cuda").manual_seed(0)
    keys = torch.randn(300_000, 256, device="cuda", generator=generator)
    keys = torch.nn.functional.normalize(keys).half()
    queries = torch.randn(100, 256, device="cuda", generator=generator)
    queries = torch.nn.functional.normalize(queries)
    expected = queries.double() @ keys.double().T
    cosines, rows = exact_search(keys, queries, 500)
    torch.testing.assert_close(cosines.double(), expected.topk(500).values, atol=1e-6, rtol=0)
    torch.testing.assert_close(cosines.double(), expected.gather(1, rows), atol=1e-6, rtol=0)


def test_mixture_with_neighbors_equals_the_definition(run, store):
    draw = np.random.default_rng(1)
    found = Store.open(store, run.weights_hash)
    hidden = draw.normal(size=(20, found.plan.dim)).astype(np.float32)
    found.keys = unit(draw.normal(size=found.keys.shape)).astype(np.float32)  # without duplicates
    probs = draw.dirichlet(np.ones(80), 20)
    settings = NeighborSettings(k=50, weight=0.4, temperature=0.1)
    memory = Neighbors(found, settings, "cpu")
    table = torch.from_numpy(np.log(probs)).float()
    mixed = Mixture([memory], [memory.lookup(torch.from_numpy(hidden))]).log_probs(table).exp()
    expected = with_neighbors(
        probs, hidden, found.keys, found.words, k=50, weight=0.4, temperature=0.1
    )
    np.testing.assert_allclose(mixed, expected, atol=1e-6)
    np.testing.assert_allclose(mixed.sum(1), 1, atol=1e-6)


def test_a_store_predicts_its_own_text(run, data, store):
    found = Store.open(store, run.weights_hash)
    assert found.words.tolist() == data.tokens("train").ids.tolist()
    lengths = np.linalg.norm(found.keys, axis=1)
    assert lengths[0] == 0  # without context
    np.testing.assert_allclose(lengths[1:], 1, atol=1e-5)
    name = f"{store},k=1,weight=0.99"
    options = ScoringOptions(memory=[name], context=found.plan.blocks.context)
    evaluation = evaluate(run, data=data, split="train", options=options)
    assert np.median(evaluation.scores.nll) < 0.1
    assert evaluation.scores.protocol.memory == (f"{name},temperature=0.02,search=auto",)


def test_keys_at_block_starts_are_not_equal(run, data, store):
    """Otherwise the nearest would depend on the batches."""
    found, hidden = Store.open(store, run.weights_hash), torch.randn(5, 64)
    assert found.plan.blocks.context == 4
    memory = Neighbors(found, NeighborSettings(k=len(found)), "cpu")
    looked = memory.lookup(hidden)
    recalled = looked.rows_NK[looked.cosines_NK > -torch.inf]
    assert set(recalled.tolist()) == set(range(1, len(found)))
    numbers = [
        evaluate(
            run,
            data=data,
            split="valid",
            options=ScoringOptions(memory=[f"{store},k=10"], device="cpu", batch_tokens=batch),
        ).scores.nll
        for batch in (32, 300)
    ]
    np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-4)


def interrupted(monkeypatch, *arguments, **options):
    """Interrupt a build after a few batches."""
    calls = count(1)

    def stop(done, total):
        if next(calls) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(building, "report_progress", stop)
        build(*arguments, **options)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_killed_build_continues_with_the_same_bytes(run, data, tmp_path, monkeypatch, dtype):
    build(run, data, tmp_path / "whole", dtype=dtype, max_keys=700, options=CPU)
    options = {"dtype": dtype, "max_keys": 700, "options": CPU}
    interrupted(monkeypatch, run, data, tmp_path / "killed", **options)
    with pytest.raises(ValueError, match="unfinished; run the same"):
        Store.open(tmp_path / "killed", run.weights_hash)
    with pytest.raises(ValueError, match="started with keys 700"):
        build(run, data, tmp_path / "killed", **(options | {"max_keys": 600}))
    same, done = DataFolder.open(os.path.relpath(data.path)), []
    monkeypatch.setattr(building, "report_progress", lambda number, total: done.append(number))
    build(run, same, tmp_path / "killed", **options)
    assert done[0] > 0 and sum(done) == 700
    for name in (KEYS_FILE, VALUES_FILE):
        whole, killed = (tmp_path / each / name for each in ("whole", "killed"))
        assert whole.read_bytes() == killed.read_bytes()


def test_continues_from_the_shorter_file(run, data, tmp_path, monkeypatch):
    options = {"max_keys": 700, "options": CPU}
    build(run, data, tmp_path / "whole", **options)
    interrupted(monkeypatch, run, data, tmp_path / "store", **options)
    with (tmp_path / "store" / KEYS_FILE).open("r+b") as file:
        file.truncate(1000)  # within a key
    build(run, data, tmp_path / "store", **options)
    for name in (KEYS_FILE, VALUES_FILE):
        whole, continued = (tmp_path / each / name for each in ("whole", "store"))
        assert whole.read_bytes() == continued.read_bytes()


def test_a_killed_build_continues_the_state_of_a_recurrent_model(data, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            loaded_models, "config_of", lambda *a, **k: with_decoder(config_of(*a, **k), "lstm")
        )
        run = load_run(on_disk(loaded(data), tmp_path / "run"))
    one_pass = ScoringOptions(device="cpu", break_mode="none", block=1200)
    build(run, data, tmp_path / "one", max_keys=300, dtype="float32", options=one_pass)
    stream = ScoringOptions(device="cpu", break_mode="stream", block=16)
    options = {"max_keys": 300, "dtype": "float32", "options": stream}
    interrupted(monkeypatch, run, data, tmp_path / "parts", **options)
    build(run, data, tmp_path / "parts", **options)
    one, parts = (Store.open(tmp_path / name, run.weights_hash) for name in ("one", "parts"))
    np.testing.assert_allclose(one.keys, parts.keys, atol=1e-5)


def test_continues_after_a_full_disk(run, data, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(building, "report_progress", lambda done, total: full() if done else None)
        with pytest.raises(OSError, match="run the same command again: it continues"):
            build(run, data, tmp_path / "store", max_keys=300, options=CPU)
    build(run, data, tmp_path / "store", max_keys=300, options=CPU)
    assert len(Store.open(tmp_path / "store", run.weights_hash)) == 300


def test_a_full_disk_while_the_index_is_written_is_reported(run, data, tmp_path, monkeypatch):
    faiss = pytest.importorskip("faiss")

    def full(*args):
        raise RuntimeError("write error: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(faiss, "write_index", full)
        with pytest.raises(OSError, match=r"No space left on device; free some space"):
            build(run, data, tmp_path / "store", index=True, options=CPU)
    build(run, data, tmp_path / "store", index=True, options=CPU)
    assert Store.open(tmp_path / "store", run.weights_hash).info.recall


def test_rejects_damaged_stores_and_other_models(run, data, store, tmp_path):
    with pytest.raises(ValueError, match="other weights"):
        Store.open(store, "0" * 64)
    with pytest.raises(FileExistsError, match="already a finished store"):
        build(run, data, store, options=CPU)
    with pytest.raises(ValueError, match="not a store"):
        open_memories([str(tmp_path)], run, "cpu")
    with pytest.raises(ValueError, match=r"k=9999: .* has only \d+ keys"):
        open_memories([f"{store},k=9999"], run, "cpu")
    copy = copied(store, tmp_path)
    values = (copy / VALUES_FILE).read_bytes()
    (copy / VALUES_FILE).write_bytes(values[:-4])
    with pytest.raises(ValueError, match=r"missing or damaged .* build the store again"):
        open_memories([str(copy)], run, "cpu")
    (copy / VALUES_FILE).write_bytes(values[:-4] + b"\1\0\0\0")
    with pytest.raises(ValueError, match=r"values.bin: missing or damaged .*memory.json"):
        open_memories([str(copy)], run, "cpu")
    (copy / "memory.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(ValueError, match=r"memory.json: damaged or from another release"):
        open_memories([str(copy)], run, "cpu")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cache:x", "window='x'"),
        ("cache:0", "window=0: must be"),
        ("cache,weight=1", "weight=1"),
        ("cache,weight", "'weight': write an override as key=value"),
        ("cache,wieght=0.1", "wieght"),
        ("cache,temperature=1e-40", "temperature=1e-40: must be"),
    ],
)
def test_rejects_bad_settings(run, spec, message):
    with pytest.raises(ValueError, match=f"memory={spec}: .*{message}"):
        open_memories([spec], run, "cpu")
    with pytest.raises(ValueError, match="memory='': use cache:2000"):
        open_memories([""], run, "cpu")


def test_low_temperatures_give_finite_numbers(run, data, store):
    memory = [f"{store},temperature=1e-4", "cache,temperature=1e-4"]
    options = ScoringOptions(memory=memory, device="cpu")
    assert np.isfinite(evaluate(run, data=data, split="valid", options=options).scores.nll).all()


def test_an_index_finds_candidates_with_exact_cosines(run, data, tmp_path):
    pytest.importorskip("faiss")
    build(run, data, tmp_path / "store", index=True, options=CPU)
    found = Store.open(tmp_path / "store", run.weights_hash)
    assert found.info.recall > 0.5
    queries = torch.randn(20, found.plan.dim, generator=torch.Generator().manual_seed(0))
    by_index, rows = Neighbors(found, NeighborSettings(k=10), "cpu").search(queries)
    exact, _ = Neighbors(found, NeighborSettings(k=10, search="exact"), "cpu").search(queries)
    known = unit(queries.numpy())[:, None] * found.keys[rows.numpy()].astype(np.float64)
    np.testing.assert_allclose(by_index, known.sum(2), atol=1e-6)
    assert (by_index[:, 0] <= exact[:, 0] + 1e-6).all()
    assert by_index[:, 0].mean() > 0.9 * exact[:, 0].mean()
