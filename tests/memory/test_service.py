"""Served models with memories."""

import math

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from loaded_models import loaded, on_disk
from serving.services import Running

import zipflm
from zipflm.memory.building import build
from zipflm.runs.load import load_run
from zipflm.serving.models import load_models

CACHE = "cache:50,weight=0.3,temperature=0.2"


@pytest.fixture(scope="module")
def served(data, tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    path = on_disk(loaded(data), root / "run")
    build(load_run(path), data, root / "store", max_keys=200)
    memory = [f"{root / 'store'},k=20,weight=0.2", CACHE]
    models = load_models([str(path)], device="cpu", memory=memory)
    with Running(models) as running:
        yield running, zipflm.load(path, device="cpu", memory=memory)


def test_each_request_has_its_own_cache(served):
    service, lm = served
    for text in ("ba be ba be ba", "ka ka ka", "ba be ba be ba"):
        answer = service.score([text, "ka bu"])
        found = [each["logprob"] for each in answer["texts"]]
        expected = [each.logprob for each in lm.score([text, "ka bu"])]
        assert found == pytest.approx(expected, abs=1e-4)
    store, cache = answer["protocol"]["memory"]
    assert store.startswith("store,k=20,") and cache == f"{CACHE},reset=none"
    ours = service.complete("ba be ba", max_tokens=8, seed=3, logprobs=0)["choices"][0]
    (theirs,) = lm.generate("ba be ba", max_words=8, seed=3)
    logprobs = [word.logprob for word in theirs.words]
    assert ours["logprobs"]["token_logprobs"] == pytest.approx(logprobs, abs=1e-4)


def test_sources_add_up_to_the_probability(served):
    service, _ = served
    answer = service.score("ba be ba be", sources=True, at=[0, 2])
    words = answer["texts"][0]["words"]
    assert ["sources" in word for word in words] == [True, False, True, False, False]
    for word in (words[0], words[2]):
        model, neighbors, cache = word["sources"]
        names = (model["name"], neighbors["name"], cache["name"])
        assert names == ("model", "neighbors", "cache")
        total = sum(each["probability"] for each in word["sources"])
        assert total == pytest.approx(math.exp(word["logprob"]), rel=1e-4)
        assert len(neighbors["neighbors"]) == 3
        assert set(neighbors["neighbors"][0]) == {"context", "word"}
    assert words[0]["sources"][2]["probability"] == 0
    assert words[2]["sources"][2]["probability"] > 0
