"""A folder that a Dask cluster made is the one that this process makes: on a real cluster of two
worker processes, of which one is killed."""

import bz2
import gzip
import logging
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from zipflm.config import Splitting
from zipflm.data import cluster
from zipflm.data import cluster_scan as module
from zipflm.data.cluster_scan import ClusterScan, code_identity, count_words
from zipflm.data.engine import Engine, Reading
from zipflm.data.memory import MemoryPlan
from zipflm.data.prepare import Options, prepare
from zipflm.data.text import Chunk

pytestmark = [
    pytest.mark.multi_process,
    # Sockets that Dask's own shutdown leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def local():
    """A cluster of two worker processes on loopback."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Words by Zipf's law, a few of them beyond ASCII; some occur in one chunk only."""
    root, draw = tmp_path_factory.mktemp("texts"), random.Random(1)
    words = [f"w{number}" for number in range(3000)] + ["caf\u00e9", "<unk>", "Yes,", "it's", "b@@"]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for name, lines in (("train", 900), ("more", 300), ("valid", 100)):
        text = [" ".join(draw.choices(words, weights, k=draw.randint(0, 12))) for _ in range(lines)]
        (root / f"{name}.txt").write_text("\n".join(text), encoding="utf-8")
    (root / "more.txt.bz2").write_bytes(bz2.compress((root / "more.txt").read_bytes()))
    numbers = [[draw.randrange(500) for _ in range(8)] for _ in range(400)]
    (root / "ids.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in numbers))
    (root / "names.txt").write_text("".join(f"item {number}\n" for number in range(500)))
    return root


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 2000)


def assert_same_folder(ours, theirs):
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    for path in theirs.iterdir():
        assert (ours / path.name).read_bytes() == path.read_bytes(), path.name


CASES = {
    "words": Options(),
    "limits": Options(min_count=2, max_size=300, shard_tokens=3000),
    "codes": Options(bpe=60),
    "rule": Options(splitting=Splitting("words", True), min_count=1),
    "encoding": Options(encoding="latin-1"),
}


# What is counted in runs is the same for all cases but for what is done with whole words later.
@pytest.mark.parametrize(
    ("case", "budget"), [*((case, None) for case in CASES), ("limits", 20_000), ("codes", 20_000)]
)
def test_a_cluster_makes_the_folder_that_one_process_makes(
    local, texts, tmp_path, small_chunks, monkeypatch, case, budget
):
    splits = {
        "train": [texts / "train.txt", texts / "more.txt.bz2"],
        "valid": [f"file://{texts}/valid.txt"],
    }
    theirs = prepare(tmp_path / "theirs", splits, CASES[case])
    if budget is not None:  # which spills many times
        plan = MemoryPlan(1 << 30, 1, 2000, budget)
        monkeypatch.setattr(MemoryPlan, "of", lambda total, processes: plan)
    ours = prepare(
        tmp_path / "ours", splits, CASES[case], scheduler=local.scheduler_address, memory=budget
    )
    assert_same_folder(ours.path, theirs.path)
    assert len(theirs.vocabulary) > 50


def test_ids_with_names_are_read_by_a_cluster_too(local, texts, tmp_path, small_chunks):
    options = Options(ids=True, names=texts / "names.txt")
    splits = {"train": [texts / "ids.txt"]}
    theirs = prepare(tmp_path / "theirs", splits, options)
    ours = prepare(tmp_path / "ours", splits, options, scheduler=local.scheduler_address)
    assert "item_7" in theirs.vocabulary
    assert_same_folder(ours.path, theirs.path)
    (tmp_path / "bad.txt").write_text("1 2\n3 x\n")
    with pytest.raises(ValueError, match="bad.txt: line 2: 'x' is no id"):
        prepare(
            tmp_path / "d",
            {"train": [tmp_path / "bad.txt"]},
            Options(ids=True),
            scheduler=local.scheduler_address,
        )


def test_a_worker_killed_while_encoding_changes_nothing(local, texts, tmp_path, small_chunks):
    splits = {"train": [texts / "train.txt"]}
    theirs = prepare(tmp_path / "theirs", splits)
    killed = []

    def report(what, done, total):
        if what == "writing train" and not killed:
            pids = sorted(worker.process.pid for worker in local.workers.values())
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

    num_chunks = (texts / "train.txt").stat().st_size / 2000
    assert num_chunks > 10  # so that there is work left for the other one
    ours = prepare(tmp_path / "ours", splits, scheduler=local.scheduler_address, report=report)
    assert killed
    assert_same_folder(ours.path, theirs.path)


def test_what_is_wrong_with_a_text_is_said_as_by_a_process(local, tmp_path, small_chunks):
    path = tmp_path / "x.txt"
    path.write_bytes(b"good line\n" * 1000 + b"bad \xff byte\n")
    with pytest.raises(ValueError, match=r"x\.txt: not UTF-8 at byte 10004; .*--errors replace"):
        prepare(tmp_path / "d", {"train": [path]}, scheduler=local.scheduler_address)
    assert os.listdir(tmp_path) == ["x.txt"]


def test_a_text_that_a_worker_does_not_see_is_named():
    chunk = Chunk("/nowhere/x.txt", 0, 10, None, 10)
    message = (
        r"^/nowhere/x\.txt: the worker on .* cannot read it \(No such.*same name, or give URLs"
    )
    with pytest.raises(OSError, match=message):
        count_words(chunk, "strict", Splitting(), code_identity())


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
@pytest.mark.parametrize(
    "later",
    [b"bb aa\n" * 1000, b"aa bb\n" * 1001, b"aa bb\n" * 400],
    ids=["as many words", "more", "fewer"],
)
def test_a_text_that_changes_between_counting_and_encoding_is_noticed(
    local, tmp_path, small_chunks, name, later
):
    path, is_packed = tmp_path / name, name.endswith(".gz")
    pack = gzip.compress if is_packed else bytes
    path.write_bytes(pack(b"aa bb\n" * 1000))

    def report(what, done, total):
        report.read += done if what == "reading train" else 0
        if report.read == total:  # all is counted, and nothing encoded yet
            path.write_bytes(pack(later))

    report.read = 0
    arguments = {"scheduler": local.scheduler_address, "report": report}
    if len(later) > 6000 and not is_packed:  # what comes later was not there to be counted
        theirs = prepare(tmp_path / "theirs", {"train": [path]})
        ours = prepare(tmp_path / "ours", {"train": [path]}, **arguments)
        assert_same_folder(ours.path, theirs.path)
        return
    with pytest.raises(ValueError, match=rf"{name}: (changed between|became shorter)"):
        prepare(tmp_path / "d", {"train": [path]}, **arguments)
    assert os.listdir(tmp_path) == [name]


def test_a_worker_with_other_code_is_refused(local, tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text("a b\n")
    monkeypatch.setattr(module, "code_identity", lambda: "0.0.9, code 1234")
    with pytest.raises(ValueError, match=r"^the worker on .* has another zipflm .*\(0\.0\.9, code"):
        prepare(tmp_path / "d", {"train": [tmp_path / "x.txt"]}, scheduler=local.scheduler_address)
    assert os.listdir(tmp_path) == ["x.txt"]


def test_standard_input_and_arrays_are_refused_with_what_to_do(local, tmp_path):
    address = local.scheduler_address
    with pytest.raises(ValueError, match="a cluster reads a text twice: save it to a file"):
        prepare(tmp_path / "d", {"train": ["-"]}, scheduler=address)
    np.save(tmp_path / "x.npy", np.arange(9))
    with pytest.raises(ValueError, match="x.npy: arrays are read by one process.*--engine dask"):
        prepare(
            tmp_path / "d", {"train": [tmp_path / "x.npy"]}, Options(ids=True), scheduler=address
        )
    assert os.listdir(tmp_path) == ["x.npy"]


def test_a_pipe_is_refused_before_it_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: can be read once only, and a cluster reads a text"):
        ClusterScan(None, [str(tmp_path / "pipe")], tmp_path, None, splitting=Splitting())


def test_a_budget_bounds_the_chunks_whose_results_come_back(tmp_path):
    sizes = []

    class Here:
        def in_order(self, task, jobs, *arguments):
            for job in jobs:
                sizes.append(job[0].size)
                yield job[0], task(*job, *arguments)

    budget = MemoryPlan.of(120 << 20, 1)
    how = Reading(errors="strict", encoding="utf-8", splitting=Splitting(), ids=False, names=None)
    path = tmp_path / "x.txt"
    path.write_text("a b c d\n" * 100_000)
    Engine(1, budget, Here()).scan([str(path)], tmp_path, how, lambda done: None)
    assert max(sizes) <= budget.chunk_bytes + 100 and len(sizes) > 1


def test_a_cluster_that_loses_all_its_workers_is_an_error_not_a_wait(
    texts, tmp_path, small_chunks, monkeypatch
):
    from distributed import LocalCluster

    monkeypatch.setattr(cluster, "_WAIT_FOR_WORKERS_SECONDS", 0.2)
    monkeypatch.setattr(cluster, "_LOOK_FOR_WORKERS_SECONDS", 0.2)
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as leaving:
        with pytest.raises(ConnectionError, match="has no workers after 0.2 seconds"):
            prepare(
                tmp_path / "d",
                {"train": [texts / "train.txt"]},
                scheduler=leaving.scheduler_address,
                report=lambda what, done, total: leaving.scale(0),
            )
    assert os.listdir(tmp_path) == []


def test_a_local_cluster_comes_and_goes_with_the_command(texts, tmp_path):
    command = [sys.executable, "-m", "zipflm", "prepare", texts / "train.txt", "--processes", "1"]
    command += ["--engine", "dask", "--out", tmp_path / "d"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    theirs = prepare(tmp_path / "theirs", {"train": [texts / "train.txt"]})
    assert_same_folder(tmp_path / "d", theirs.path)
