import threading

import pytest
import torch

from zipflm.config import Blocks
from zipflm.data.batches import Batches, prefetch
from zipflm.data.token_file import TokenArray


@pytest.fixture
def batches():
    tokens = TokenArray.of([[5, 6, 7, 2]] * 40)
    return Batches(tokens, Blocks(break_mode="none", block=8), max_tokens=16, seed=1, shuffle=True)


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("zipflm-loader")]


def test_prefetch_yields_the_batches(batches):
    pairs = zip(prefetch(batches.epoch(2), "cpu"), batches.epoch(2), strict=True)
    assert all(torch.equal(one.words, other.words) for one, other in pairs)
    assert not loader_threads()


def test_closing_early_stops_the_thread(batches):
    loaded = prefetch(batches.epoch(0), "cpu")
    next(loaded)
    loaded.close()
    assert not loader_threads()


def test_prefetch_raises_errors_of_its_thread(batches, monkeypatch):
    def fail(ids, windows):
        raise OSError("the disk went away")

    monkeypatch.setattr("zipflm.data.batches.batch_of", fail)
    with pytest.raises(OSError, match="the disk went away"):
        next(prefetch(batches.epoch(0), "cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_prefetch_moves_batches_to_the_device(batches):
    pairs = zip(prefetch(batches.epoch(0), "cuda"), batches.epoch(0), strict=True)
    assert all(torch.equal(one.words.cpu(), other.words) for one, other in pairs)
