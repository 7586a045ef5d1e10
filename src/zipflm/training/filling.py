"""Parameters get memory after they were sharded, and values one by one after that.

So no process ever holds more than its own shards and one whole parameter, the one whose first
values it draws; of a checkpoint it reads only what it keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from zipflm.runs.building import Part, Values


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give what is on the meta device memory without values; everything else is moved."""
    known = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        if name in known:
            buffer.copy_(known[name])


@torch.no_grad()
def fill(model: nn.Module, values: Values) -> None:
    """Give every parameter, or this process's shard of it, its values."""
    for name, param in model.named_parameters():
        local_shard(param).copy_(values(name, part_here(param)))


def local_shard(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor, or all of a tensor that is not sharded.

    Element-wise work can be done on the parts, which saves dispatching through the sharded type.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_here(tensor: Tensor) -> Part:
    """Which part of the whole tensor `local_shard` is; empty slices if there is none for us."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    sizes, starts = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def like_shard(part: Tensor, other: Tensor) -> Tensor:
    """A tensor laid out as `other` is, of which `part` is this process's shard."""
    local = local_shard(other)
    part = part.to(local.device)
    if not isinstance(other, DTensor):
        return part
    return DTensor.from_local(
        part,
        other.device_mesh,
        other.placements,
        run_check=False,
        shape=other.shape,
        stride=other.stride(),
    )
