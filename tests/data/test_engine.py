"""Whoever reads the texts, and with how much memory: the folder is the same."""

import gzip
import os
import random

import numpy as np
import pytest

from zipflm.config import Splitting
from zipflm.data.engine import engine
from zipflm.data.memory import MemoryPlan
from zipflm.data.prepare import Options, prepare

CASES = {
    "words": Options(),
    "all words": Options(min_count=1),
    "limits": Options(min_count=2, max_size=300),
    "shards": Options(shard_tokens=2000),
    "codes": Options(bpe=60),
    "given codes": Options(bpe_codes="codes"),
    "given words": Options(vocabulary="words"),
    "rule": Options(splitting=Splitting("words", True), min_count=1),
    "encoding": Options(encoding="latin-1"),
    "errors": Options(errors="replace"),
    "ids": Options(ids=True),
    "named ids": Options(ids=True, names="names"),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    root, draw = tmp_path_factory.mktemp("texts"), random.Random(1)
    words = [f"w{number}" for number in range(2000)]
    words += [
        "caf\u00e9",
        "<unk>",
        "<pad>",
        "Yes,",
        "it's",
        "b@@",
        "\u4e2d\u6587",
        "madeupword0000",
    ]
    draw.shuffle(words)
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for name, lines in (("train", 900), ("more", 300), ("valid", 100)):
        text = [" ".join(draw.choices(words, weights, k=draw.randint(0, 12))) for _ in range(lines)]
        (root / f"{name}.txt").write_text("\n".join(text), encoding="utf-8")
    (root / "more.txt.gz").write_bytes(gzip.compress((root / "more.txt").read_bytes()))
    for name in ("train", "valid"):
        rows = [[draw.randrange(500) for _ in range(8)] for _ in range(300)]
        (root / f"{name}.ids").write_text("".join(" ".join(map(str, r)) + "\n" for r in rows))
    (root / "names").write_text("".join(f"item {number}\n" for number in range(500)))
    made = prepare(root / "made", {"train": [root / "train.txt"]}, Options(bpe=40))
    (root / "codes").write_bytes((made.path / "bpe.codes").read_bytes())
    made = prepare(root / "other", {"train": [root / "train.txt"]}, Options(max_size=100))
    (root / "words").write_bytes((made.path / "vocabulary.txt").read_bytes())
    return root


@pytest.fixture
def little_memory(monkeypatch):
    """Chunks of a few lines, of which each fills what there is for counting."""
    plan = MemoryPlan(1 << 30, 2, 2000, 20_000)
    monkeypatch.setattr(MemoryPlan, "of", lambda total, processes: plan)


@pytest.mark.parametrize("case", CASES)
def test_a_budget_does_not_change_the_folder(texts, tmp_path, monkeypatch, little_memory, case):
    monkeypatch.chdir(texts)
    splits = {"train": ["train.txt", "more.txt.gz"], "valid": ["valid.txt"]}
    if CASES[case].ids:
        splits = {"train": ["train.ids"], "valid": ["valid.ids"]}
    theirs = prepare(tmp_path / "theirs", splits, CASES[case])
    ours = prepare(tmp_path / "ours", splits, CASES[case], memory=1)
    assert sorted(os.listdir(ours.path)) == sorted(os.listdir(theirs.path))
    for path in theirs.path.iterdir():
        assert (ours.path / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(theirs.vocabulary) > 50


def test_words_that_do_not_fit_leave_nothing_behind(texts, tmp_path, monkeypatch):
    plan = MemoryPlan(90 << 20, 1, 1 << 20, 20_000)  # of which reading takes all but nothing
    monkeypatch.setattr(MemoryPlan, "of", lambda total, processes: plan)
    monkeypatch.setattr(MemoryPlan, "for_words", 100_000)
    splits = {"train": [texts / "train.txt"]}
    with pytest.raises(ValueError, match="--memory 90M: more than 277 different words occur 3 tim"):
        prepare(tmp_path / "d", splits, memory=1)
    assert not any(tmp_path.iterdir())
    assert len(prepare(tmp_path / "d", splits, Options(max_size=200), memory=1).vocabulary) == 200


def test_arrays_are_refused_where_memory_is_bounded(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(9))
    with pytest.raises(ValueError, match="x.npy: arrays are read by one process.*--memory"):
        prepare(tmp_path / "d", {"train": [tmp_path / "x.npy"]}, Options(ids=True), memory=1 << 30)
    assert os.listdir(tmp_path) == ["x.npy"]


def test_processes_are_those_that_the_budget_has_room_for():
    with engine(4, None, None) as free, engine(4, 300 << 20, None) as bound:
        assert (free.processes, free.budget) == (4, None)
        assert bound.budget is not None and bound.processes == bound.budget.processes < 4
    with pytest.raises(ValueError, match="--processes 0"), engine(0, None, None):
        pass
