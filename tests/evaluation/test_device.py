import pytest
import torch

from zipflm.distributed.processes import resolve_device, started


@pytest.fixture
def gpus(monkeypatch):
    """Sets the number of GPUs."""

    def set_count(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_count


@pytest.mark.parametrize(("count", "chosen"), [(0, "cpu"), (1, "cuda"), (8, "cuda")])
def test_defaults_to_a_gpu_if_there_is_one(gpus, count, chosen):
    gpus(count)
    assert resolve_device(None) == chosen


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1"])
def test_returns_available_devices_unchanged(gpus, name):
    gpus(2)
    assert resolve_device(name) == name


@pytest.mark.parametrize(
    ("count", "name"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2"), (2, "mps"), (2, "meta")]
)
def test_rejects_missing_devices(gpus, count, name):
    gpus(count)
    with pytest.raises(ValueError, match=f"^device={name}: not available .*such as cpu$"):
        resolve_device(name)


def test_several_processes_can_be_too_many(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="such as cpu, or fewer processes$"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["", "gpu", "abacus", "cuda:x", "cuda:-1"])
def test_rejects_unknown_names(gpus, name):
    gpus(2)
    with pytest.raises(ValueError, match=f"^device={name}: choose cpu, cuda, cuda:N or mps$"):
        resolve_device(name)


def test_ignores_gpus_that_the_driver_cannot_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ValueError, match="not available here"):
        resolve_device("cuda:1")


def test_several_processes_on_gpus_need_torchrun(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match="LOCAL_RANK: not set; start several"), started("cuda"):
        pass
