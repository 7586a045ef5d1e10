"""Word ids, checked on the device that holds them: a bad id is an error, never a wrong result.

On a CPU the check raises at once. Elsewhere it is an assertion on the device, so that the host does
not wait for it. It is an operator of its own, so that compiled code makes the same check.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zipflm.kernels.operators import nobody_looks


def _check(ids: Tensor, active: Tensor | None, name: str, size: int) -> Tensor:
    valid = (ids >= 0) & (ids < size)
    if active is not None:
        valid = valid | ~active
    if ids.device.type != "cpu":
        torch._assert_async(valid.all(), f"{name}: an id lies outside the vocabulary of {size}")
    elif not bool(valid.all()):
        bad = int(ids.flatten()[valid.flatten().to(torch.uint8).argmin()])
        raise ValueError(
            f"{name}={bad}: outside the vocabulary of {size} words; give ids from 0 to {size - 1}"
        )
    return ids.clone() if active is None else ids.where(active, 0)


_checked = torch.library.custom_op("zipflm::checked_ids", _check, mutates_args=())


@_checked.register_fake
def _(ids: Tensor, active: Tensor | None, name: str, size: int) -> Tensor:
    return torch.empty_like(ids)


def checked_ids(name: str, ids: Tensor, size: int, active: Tensor | None = None) -> Tensor:
    """The ids as int64, each in [0, size); those not `active` are not checked and become 0."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(
            f"{name}.dtype={ids.dtype}: word ids are integers; convert them, e.g. {name}.long()"
        )
    # First, because a narrow type may not hold `size` to compare with.
    ids = ids.to(torch.int64)
    tensors = (ids,) if active is None else (ids, active)
    check = _check if nobody_looks(*tensors) else _checked
    checked: Tensor = check(ids, active, name, size)
    return checked
