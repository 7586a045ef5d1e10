"""The device that was asked for, or a sentence that says which there are."""

import pytest
import torch

from zipflm.evaluation.scoring import usable_device


@pytest.fixture
def gpus(monkeypatch):
    """So many GPUs, wherever the tests run."""

    def have(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return have


@pytest.mark.parametrize(("count", "chosen"), [(0, "cpu"), (1, "cuda"), (8, "cuda")])
def test_a_gpu_is_taken_where_there_is_one(gpus, count, chosen):
    gpus(count)
    assert usable_device(None) == chosen


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1"])
def test_what_is_there_is_given_as_it_was_named(gpus, name):
    gpus(2)
    assert usable_device(name) == name


@pytest.mark.parametrize(
    ("count", "name"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2"), (2, "mps"), (2, "meta")]
)
def test_what_is_not_there_is_refused_with_one_that_is(gpus, count, name):
    gpus(count)
    with pytest.raises(ValueError, match=f"^--device {name}: there is none .*--device cpu$"):
        usable_device(name)


@pytest.mark.parametrize("name", ["", "gpu", "abacus", "cuda:x", "cuda:-1"])
def test_what_names_no_device_is_refused_with_those_that_do(gpus, name):
    gpus(2)
    with pytest.raises(ValueError, match=f"^--device {name}: choose cpu, cuda, cuda:N or mps$"):
        usable_device(name)


def test_a_driver_that_sees_devices_it_cannot_use_counts_as_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ValueError, match="there is none here that PyTorch can use"):
        usable_device("cuda:1")
