"""Position encodings: sinusoids, and rotations of queries and keys (RoPE).

Shapes: B sequences, T positions, D model width, H heads, K head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.kernels.operators import can_skip_dispatch

FIRST_POSITION = 2
"""fairseq counts positions from padding_idx + 1, and the published weights depend on it."""


def sinusoids(
    length: int, dim: int, device: torch.device | str = "cpu", start: int | Tensor = 0
) -> Tensor:
    """Return the position table [length, dim] in float32: all sines, then all cosines.

    The first row is for word `start` of a text, at position `FIRST_POSITION + start`. With a
    `start` of shape [B, 1], each of B sequences has a separate table, [B, length, dim]. A `start`
    of shape [B, length] holds the index of every word.

    >>> sinusoids(1, 4).round(decimals=4)  # position 2: sin(2), sin(2e-4), cos(2), cos(2e-4)
    tensor([[ 9.0930e-01,  2.0000e-04, -4.1610e-01,  1.0000e+00]])
    """
    half = dim // 2
    step = math.log(10_000) / max(half - 1, 1)
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32, device=device) * -step)
    positions = _positions(length, device, FIRST_POSITION + start)
    angles = positions.unsqueeze(-1) * frequencies
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, dim % 2))


def rotations(
    length: int, head_dim: int, device: torch.device, start: int | Tensor = 0
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [length, 1, head_dim / 2] for `rotate`, in float32, from position
    `start`. The result has a leading dimension B if rows have different positions, as in
    `sinusoids`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    positions = _positions(length, device, start)
    angles = positions.view(*positions.shape, 1, 1) * 10_000**-exponents
    return angles.cos(), angles.sin()


def _positions(length: int, device: torch.device | str, start: int | Tensor) -> Tensor:
    """Return positions in float32, [T] or [B, T]: counted from `start`, or `start` itself if it has
    a position for every word."""
    if isinstance(start, Tensor) and start.dim() == 2 and start.shape[1] == length:
        return start.to(device=device, dtype=torch.float32)
    return torch.arange(length, dtype=torch.float32, device=device) + start


def rotations_for(hidden_BTD: Tensor, head_dim: int, start: int | Tensor) -> tuple[Tensor, Tensor]:
    """Return `rotations` for the positions of these vectors."""
    if isinstance(start, Tensor) or can_skip_dispatch(hidden_BTD):
        return rotations(hidden_BTD.shape[1], head_dim, hidden_BTD.device, start)
    tables: tuple[Tensor, Tensor] = _opaque_rotations(hidden_BTD.detach(), head_dim, start)
    return tables


# A custom operator: the compiler would otherwise recompute powers, sines and cosines for every
# element of every head.
@torch.library.custom_op("zipflm::rotations", mutates_args=())
def _opaque_rotations(hidden_BTD: Tensor, head_dim: int, start: int) -> tuple[Tensor, Tensor]:
    return rotations(hidden_BTD.shape[1], head_dim, hidden_BTD.device, start)


@_opaque_rotations.register_fake
def _(hidden_BTD: Tensor, head_dim: int, start: int) -> tuple[Tensor, Tensor]:
    shape = (hidden_BTD.shape[1], 1, head_dim // 2)
    cos = hidden_BTD.new_empty(shape, dtype=torch.float32)
    return cos, torch.empty_like(cos)


def rotate(vectors_BTHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (k, k + K/2) by the angle of its position (RoPE)."""
    cos, sin = (table.to(vectors_BTHK.dtype) for table in rotation)
    first, second = vectors_BTHK.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
