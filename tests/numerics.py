"""Assertions about numbers, with the worst element in the message, and about sizes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, within: float, what: str = ""
) -> None:
    """Absolute difference at most `within`, relative to the largest expected value above 1."""
    assert actual.shape == expected.shape, f"{what}: {actual.shape} is not {expected.shape}"
    difference = (actual.double() - expected.double()).abs()
    scale = max(1.0, expected.double().abs().max().item()) if expected.numel() else 1.0
    worst = difference.max().item() if difference.numel() else 0.0
    assert worst <= within * scale, f"{what}: off by {worst:.3g}, allowed {within * scale:.3g}"


def assert_as_good_as_plain(
    truth: torch.Tensor, plain: torch.Tensor, fast: torch.Tensor, what: str = ""
) -> None:
    """The error-budget rule: `fast` may be as wrong as plain low-precision PyTorch, no worse."""
    plain_error = (truth.double() - plain.double()).abs().max().item()
    fast_error = (truth.double() - fast.double()).abs().max().item()
    slack = 1e-6 * max(1.0, truth.double().abs().max().item())
    assert fast_error <= 1.5 * plain_error + slack, (
        f"{what}: error {fast_error:.3g}, plain low precision has {plain_error:.3g}"
    )


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor any operation makes.

    It does not look into an operator of our own; the operators' tests watch their insides.
    """

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result
