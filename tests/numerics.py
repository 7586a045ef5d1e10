"""Assertions about numbers, with the worst element in the message."""

import torch


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
