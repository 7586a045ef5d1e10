"""Initialization of parameters.

The `initial_values` of an `InitializedModule` pair the name of each of its parameters with a
function that fills it. A new layer uses torch's global generator (`reset_parameters`), like torch's
own layers. In a training run, every parameter has its own generator, seeded from the run's seed and
the name of the parameter (`first_value`), so that values do not depend on the order of the
parameters or the number of processes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Generator, Tensor, nn


class Fill(Protocol):
    """Initializes a parameter in place (default generator: torch's global one)."""

    def __call__(self, tensor: Tensor, generator: Generator | None = None) -> object: ...


class InitializedModule(nn.Module):
    """Base class of modules with their own initialization."""

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        return iter(())

    def reset_parameters(self) -> None:
        """Initialize the parameters from torch's global generator."""
        for name, fill in self.initial_values():
            parameter = self.get_parameter(name)
            # Skip meta tensors: filling one has no effect, but makes torch import its compiler.
            if not parameter.is_meta:
                fill(parameter)


def fills(model: nn.Module) -> dict[str, Fill]:
    """Return the function that initializes each parameter of a model, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: fill
        for prefix, module in model.named_modules()
        if isinstance(module, InitializedModule)
        for name, fill in module.initial_values()
    }


def first_value(seed: int, name: str, fill: Fill, like: Tensor) -> Tensor:
    """Return the initial values of a parameter, on the CPU, with the shape and dtype of `like`.

    >>> weight = torch.empty(2, 3, device="meta")
    >>> first, second = (first_value(1, "key.weight", zeros, weight) for _ in range(2))
    >>> torch.equal(first, second)
    True
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    tensor = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    fill(tensor, generator=generator)
    return tensor


def constant(*values: float) -> Fill:
    """Fill a tensor with a value, or each of several equal parts with its value."""

    def fill(tensor: Tensor, generator: Generator | None = None) -> None:
        for part, value in zip(tensor.detach().chunk(len(values)), values, strict=True):
            part.fill_(value)

    return fill


zeros, ones = constant(0.0), constant(1.0)


def normal(std: float) -> Fill:
    return partial(nn.init.normal_, std=std)


def uniform(bound: float) -> Fill:
    return partial(nn.init.uniform_, a=-bound, b=bound)


def xavier_uniform(gain: float = 1.0) -> Fill:
    return partial(nn.init.xavier_uniform_, gain=gain)


def xavier_normal(zero_row: int | None = None) -> Fill:
    """Xavier normal, with row `zero_row` set to 0."""

    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        nn.init.xavier_normal_(tensor, generator=generator)
        return _zero_row(tensor, zero_row)

    return fill


def table(padding_idx: int | None = None) -> Fill:
    """Normal with variance 1 / width, with row `padding_idx` set to 0."""

    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        nn.init.normal_(tensor, std=tensor.shape[1] ** -0.5, generator=generator)
        return _zero_row(tensor, padding_idx)

    return fill


def torch_linear(fan_in: int) -> Fill:
    """PyTorch's default for linear layers: uniform within +-1 / sqrt(fan_in)."""
    return uniform(1 / math.sqrt(fan_in))


def _zero_row(tensor: Tensor, row: int | None) -> Tensor:
    if row is not None:
        with torch.no_grad():
            tensor[row].zero_()
    return tensor
