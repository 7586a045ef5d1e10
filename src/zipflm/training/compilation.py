"""Compile the model for each run separately, and notice calls that ran uncompiled.

torch stores compiled versions with the code object of a function. After eight versions it silently
runs the function uncompiled. All models of a process share the code of their methods, so a study
would compile only the first few. (torch 2.13 can count versions for each call of `torch.compile`
separately; torch 2.11 cannot.) Here every run compiles its own copy of the function, and one
copy per shape if there are only a few shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from zipflm.model.inputs import UniqueTokens

BACKEND: str | Callable[..., Any] = "inductor"

_serial_numbers = itertools.count()


class Compilation:
    """Compiles the forward of modules of the same type.

    Validation runs uncompiled: its batches have different shapes, and compiling for them would
    take longer than it saves.
    """

    def __init__(self, modules: Iterable[nn.Module], fixed_shapes: bool) -> None:
        """With `fixed_shapes`, compile a copy of the function for each shape of the first input.
        Otherwise torch compiles a single copy, first for one shape and later for dynamic shapes,
        which run slower."""
        self._fixed_shapes = fixed_shapes
        self._compiled: dict[tuple[torch.Size, ...] | None, Callable[..., Tensor]] = {}
        self.is_complete = True
        """False if a call ran uncompiled that should not have."""
        for module in modules:
            # `module.compile()` would also compile the hooks of FSDP.
            module.forward = partial(self._forward, module)

    @property
    def num_versions(self) -> int:
        """Number of compiled copies of the function. torch can compile a copy several times if
        shapes are dynamic."""
        return len(self._compiled)

    def _forward(self, module: nn.Module, *inputs: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return _plain_forward(module, *inputs)
        shape = _shapes(inputs[0]) if self._fixed_shapes else None
        if shape not in self._compiled:
            self._compiled[shape] = self._compile()
        from torch._dynamo.exc import FailOnRecompileLimitHit  # slow to import

        try:
            return self._compiled[shape](module, self, *inputs)
        except FailOnRecompileLimitHit:
            # Only with dynamic shapes. Run shapes without a version uncompiled instead of failing.
            self._compiled[shape] = _without_new_versions(self._compiled[shape])
            return self._compiled[shape](module, self, *inputs)

    def _compile(self) -> Callable[..., Tensor]:
        # fullgraph: with graph breaks, a forward compiled in parts would count as compiled.
        return torch.compile(
            _copy_of(_checked_forward),
            backend=BACKEND,
            fullgraph=True,
            dynamic=False if self._fixed_shapes else None,
        )


def _shapes(words: Tensor | UniqueTokens) -> tuple[torch.Size, ...]:
    tensors = words if isinstance(words, UniqueTokens) else (words,)
    return tuple(tensor.shape for tensor in tensors)


def _plain_forward(module: nn.Module, *inputs: Any) -> Tensor:
    output: Tensor = type(module).forward(module, *inputs)
    return output


def _checked_forward(module: nn.Module, compilation: Compilation, *inputs: Any) -> Tensor:
    # The condition is constant while torch compiles, so compiled code does not contain this check.
    if not torch.compiler.is_compiling():
        compilation.is_complete = False
    return _plain_forward(module, *inputs)


def _without_new_versions(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a compiled function so that it runs uncompiled if no existing version matches."""

    def run_without_compiling(*inputs: Any) -> Tensor:
        with torch.compiler.set_stance("eager_on_recompile"):
            return compiled(*inputs)

    return run_without_compiling


def _copy_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Copy a function and its code object. The copy gets a new name, because torch treats equal
    code objects as the same."""
    assert isinstance(function, FunctionType)
    name = f"{function.__name__}_{next(_serial_numbers)}"
    return FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)
