"""`torch.compile` for one run: shared with no other run, and never left out unnoticed.

torch stores compiled versions with a function's code object. Once there are eight it compiles no
more and runs the code as it is, which it mentions in its own log alone. All models of a process
share the code of their methods, so a study that trains many of them would compile only the first
few. (torch 2.13 can be told to count every call of `torch.compile` apart; torch 2.11 cannot.) Here
every run compiles a copy of the function with a code object of its own, and a run of fixed shapes
one copy for each shape, so that no function ever needs a second version.
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
"""What turns torch's graphs into code."""

_serial_numbers = itertools.count()


class Compilation:
    """Compiles the forward of one or more modules of the same type, and counts where that failed.

    Only forwards that a backward pass may follow are compiled. Validation runs the modules as they
    are: its batches have shapes of their own, and compiling them takes longer than it saves.
    """

    def __init__(self, modules: Iterable[nn.Module], one_shape: bool) -> None:
        """With `one_shape` a version is compiled for each shape of the first input. Without, torch
        compiles for the first shape it meets and then for all others together, which is slower to
        run but the only choice where every batch has another shape."""
        self._one_shape = one_shape
        self._compiled: dict[tuple[torch.Size, ...] | None, Callable[..., Tensor]] = {}
        self.num_uncompiled = 0
        """Forwards that should have run compiled and did not."""
        for module in modules:
            # Not `module.compile()`, which would also compile the hooks with which FSDP gathers
            # weights before a forward.
            module.forward = partial(self._forward, module)

    @property
    def is_complete(self) -> bool:
        """Whether everything that should have run compiled did so."""
        return self.num_uncompiled == 0

    @property
    def num_versions(self) -> int:
        """Versions that were compiled, one for every shape."""
        return len(self._compiled)

    def _forward(self, module: nn.Module, *inputs: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return _plain_forward(module, *inputs)
        shape = _shapes(inputs[0]) if self._one_shape else None
        if shape not in self._compiled:
            self._compiled[shape] = self._compile()
        from torch._dynamo.exc import FailOnRecompileLimitHit  # imported by the compilation above

        try:
            return self._compiled[shape](module, self, *inputs)
        except FailOnRecompileLimitHit:
            # Possible for changing shapes only. Better slow than dead in the middle of a run.
            self._compiled[shape] = _without_new_versions(self._compiled[shape])
            return self._compiled[shape](module, self, *inputs)

    def _compile(self) -> Callable[..., Tensor]:
        # The whole graph or an error: a forward compiled in parts would pass for compiled.
        return torch.compile(
            _copy_of(_counted_forward),
            backend=BACKEND,
            fullgraph=True,
            dynamic=False if self._one_shape else None,
        )


def _shapes(words: Tensor | UniqueTokens) -> tuple[torch.Size, ...]:
    tensors = words if isinstance(words, UniqueTokens) else (words,)
    return tuple(tensor.shape for tensor in tensors)


def _plain_forward(module: nn.Module, *inputs: Any) -> Tensor:
    """`module.forward` as its class defines it."""
    output: Tensor = type(module).forward(module, *inputs)
    return output


def _counted_forward(module: nn.Module, compilation: Compilation, *inputs: Any) -> Tensor:
    # A constant to torch when it compiles this function: compiled code does not count, and does
    # not even ask.
    if not torch.compiler.is_compiling():
        compilation.num_uncompiled += 1
    return _plain_forward(module, *inputs)


def _without_new_versions(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Runs compiled where a version fits and uncompiled elsewhere."""

    def run(*inputs: Any) -> Tensor:
        with torch.compiler.set_stance("eager_on_recompile"):
            return compiled(*inputs)

    return run


def _copy_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function with a code object of its own, under a name of its own: code objects that
    differ in nothing are equal, and torch might take one for another."""
    assert isinstance(function, FunctionType)
    name = f"{function.__name__}_{next(_serial_numbers)}"
    return FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)
