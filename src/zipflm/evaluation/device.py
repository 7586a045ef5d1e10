"""The device that a command was asked for, checked; evaluation and training ask here."""

from __future__ import annotations

import torch


def usable_device(name: str | None) -> str:
    """`name`, or a GPU of NVIDIA's where there is one; ValueError if PyTorch cannot use it here.

    Apple's (mps) is used where it is asked for.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name}: choose cpu, cuda, cuda:N or mps") from None
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= count.get(device.type, 0):
        raise ValueError(
            f"--device {name}: there is none here that PyTorch can use; try --device cpu"
        )
    return name
