"""Choose the device to compute on."""

from __future__ import annotations

import torch


def resolve_device(name: str | None) -> str:
    """Return `name`; by default cuda if available, otherwise cpu.

    Raises ValueError if PyTorch cannot use the device on this machine.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name}: choose cpu, cuda, cuda:N or mps") from None
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= count.get(device.type, 0):
        raise ValueError(
            f"device={name}: not available here; use another device, such as cpu, or "
            "fewer processes"
        )
    return name
