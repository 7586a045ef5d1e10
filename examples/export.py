"""Export a run as a program that scores text without zipflm.

    python examples/export.py runs/mine scorer.pt2

Then, with only torch installed:

    scorer = torch.export.load("scorer.pt2").module()
    nll = scorer(words, targets)  # ids, int64 [rows, words] -> -log p(target) in nats

The program accepts any number of rows and words. It holds all logits of a batch in memory, so keep
batches small.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import zipflm
from zipflm.kernels import reference
from zipflm.model.decoders.positions import rotations


class Scorer(nn.Module):
    def __init__(self, model: zipflm.LanguageModel):
        super().__init__()
        self.model = model

    def forward(self, words_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return self.model.nll(words_BT, targets_BT)


def export_scorer(model: zipflm.LanguageModel) -> ExportedProgram:
    """Export a program: words [B, T], targets [B, T] -> -log p(target | words so far) [B, T]."""
    words_BT = torch.zeros(2, 3, dtype=torch.int64)
    shape = {0: Dim("rows", min=1), 1: Dim("words", min=1)}
    with torch.no_grad():
        # The exporter merges inputs that are the same tensor, so pass a copy.
        program = torch.export.export(
            Scorer(model).eval(), (words_BT, words_BT.clone()), dynamic_shapes=(shape, shape)
        )
        return program.run_decompositions(plain_operators(program))


def plain_operators(program: ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Map the custom operators in the program to plain PyTorch."""
    plain = {"checked_ids": checked_ids, "rotations": rotations_at, "linear_nll": linear_nll}
    return {
        node.target: next(f for name, f in plain.items() if node.target._opname.startswith(name))
        for node in program.graph.nodes
        if getattr(node.target, "namespace", None) == "zipflm"
    }


def checked_ids(ids: Tensor, active: Tensor | None, name: str, size: int) -> Tensor:
    is_valid = (ids >= 0) & (ids < size)
    if active is not None:
        is_valid = is_valid | ~active
    torch._assert_async(is_valid.all(), f"{name}: an id is outside the vocabulary of {size} words")
    return ids.clone() if active is None else ids.where(active, 0)


def rotations_at(hidden_BTD: Tensor, head_dim: int, start: int) -> tuple[Tensor, Tensor]:
    return rotations(hidden_BTD.shape[1], head_dim, hidden_BTD.device, start)


def linear_nll(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    nll_N = reference.linear_nll(hidden_NE, weight_VE, targets_N, active_N)
    return nll_N, nll_N.clone()  # the second result is only used for gradients


if __name__ == "__main__":
    run, out = sys.argv[1:]
    torch.export.save(export_scorer(zipflm.load(run, device="cpu").model), out)
