"""How parameters begin: each layer states it once, for one process and for many.

A layer with parameters has `initial_values`, which pairs the name of each of its parameters with
the way to fill it. A layer that stands alone fills them from torch's global generator, as torch's
own layers do (`reset`). The parameters of a whole model are filled one by one, each from a
generator of its own that follows from the seed and the parameter's name (`first_value`). So they do
not depend on the order, nor on how many processes share the model, and no process needs more than
one of them at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn


class Fill(Protocol):
    """Gives a whole parameter its first values; without a generator, from torch's global one."""

    def __call__(self, tensor: Tensor, generator: Generator | None = None) -> object: ...


@runtime_checkable
class HasInitialValues(Protocol):
    """A module that says how its parameters begin; each parameter of a model has one that does."""

    def initial_values(self) -> Iterator[tuple[str, Fill]]: ...


def reset(layer: nn.Module) -> None:
    """Fill the parameters of a layer from torch's global generator."""
    assert isinstance(layer, HasInitialValues)
    for name, fill in layer.initial_values():
        parameter = layer.get_parameter(name)
        # On the meta device there is nothing to fill, and torch would import its compiler for it.
        if not parameter.is_meta:
            fill(parameter)


def fills(model: nn.Module) -> dict[str, Fill]:
    """How each parameter of a model begins, by its name."""
    return {
        f"{prefix}.{name}" if prefix else name: fill
        for prefix, module in model.named_modules()
        if isinstance(module, HasInitialValues)
        for name, fill in module.initial_values()
    }


def first_value(seed: int, name: str, fill: Fill, like: Tensor) -> Tensor:
    """A parameter's first values, whole and on the CPU, in the shape and type of `like`.

    >>> weight = torch.empty(2, 3, device="meta")
    >>> first, second = (first_value(1, "key.weight", zeros, weight) for _ in range(2))
    >>> torch.equal(first, second)
    True
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    tensor = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    fill(tensor, generator)
    return tensor


# --- The distributions. ---


def zeros(tensor: Tensor, generator: Generator | None = None) -> object:
    return nn.init.zeros_(tensor)


def ones(tensor: Tensor, generator: Generator | None = None) -> object:
    return nn.init.ones_(tensor)


def constant(value: float) -> Fill:
    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        return nn.init.constant_(tensor, value)

    return fill


def values(*numbers: float) -> Fill:
    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        with torch.no_grad():
            return tensor.copy_(tensor.new_tensor(numbers))

    return fill


def normal(std: float) -> Fill:
    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        return nn.init.normal_(tensor, std=std, generator=generator)

    return fill


def uniform(bound: float) -> Fill:
    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        return nn.init.uniform_(tensor, -bound, bound, generator=generator)

    return fill


def xavier_uniform(gain: float = 1.0) -> Fill:
    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        return nn.init.xavier_uniform_(tensor, gain, generator=generator)

    return fill


def xavier_normal(zero_row: int | None = None) -> Fill:
    """`zero_row` starts at zero all the same."""

    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        nn.init.xavier_normal_(tensor, generator=generator)
        return _zero_row(tensor, zero_row)

    return fill


def table(padding_idx: int | None = None) -> Fill:
    """Normal with variance 1 / width; the padding word starts at zero."""

    def fill(tensor: Tensor, generator: Generator | None = None) -> object:
        nn.init.normal_(tensor, std=tensor.shape[1] ** -0.5, generator=generator)
        return _zero_row(tensor, padding_idx)

    return fill


def torch_linear(fan_in: int) -> Fill:
    """What PyTorch does by default, for weights and for biases: each of them is uniform within
    1 / sqrt(fan_in), though for weights torch writes that in another way."""
    return uniform(1 / math.sqrt(fan_in))


def _zero_row(tensor: Tensor, row: int | None) -> Tensor:
    if row is not None:
        with torch.no_grad():
            tensor[row].zero_()
    return tensor
