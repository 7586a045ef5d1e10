"""Programs of `torch.export`: a model that scores and writes where this package is not installed.

A program holds weights and computations and nothing else, and takes any number of rows and words.
This package's own operators are replaced by what they stand for in plain PyTorch (for losses, that
is `kernels.reference`), so that `torch.export.load`, AOTInductor and others need know none of them.

Shapes: B rows, T words, V words of the vocabulary, L layers, H heads, P earlier words, K head
width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from zipflm.kernels import reference
from zipflm.model.decoder import rotations
from zipflm.model.language_model import LanguageModel


def export_scorer(model: LanguageModel) -> ExportedProgram:
    """words [B, T], targets [B, T] -> -log p(target | words up to here) in nats, [B, T].

    Ids are int64. All logits of a batch are held at once: give it batches of moderate size.
    `torch.export.save(export_scorer(model), "scorer.pt2")` writes a file; what
    `torch.export.load("scorer.pt2").module()` returns is called like a function.
    """
    words_BT = torch.zeros(2, 3, dtype=torch.int64, device=_device_of(model))
    shape = {0: Dim("rows", min=1), 1: Dim("words", min=1)}
    return _program(_Scorer(model), (words_BT, words_BT.clone()), (shape, shape))


def export_step(model: LanguageModel) -> ExportedProgram:
    """words [B], keys, values -> log p of every next word [B, V], keys, values.

    Keys and values are [L, B, H, P, K] of the P words before; those that come back are one longer.
    Start with none: P = 0.
    """
    config, device = model.config.decoder, _device_of(model)
    words_B = torch.zeros(2, dtype=torch.int64, device=device)
    head_dim = config.dim // config.num_heads
    past = torch.zeros(config.num_layers, 2, config.num_heads, 3, head_dim, device=device)
    past = past.to(next(model.decoder.parameters()).dtype)
    rows = Dim("rows", min=1)
    shape = {1: rows, 3: Dim("past", min=0)}
    return _program(_Step(model), (words_B, past, past.clone()), ({0: rows}, shape, shape))


class _Scorer(nn.Module):
    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model = model

    def forward(self, words_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return self.model.nll(words_BT, targets_BT)


class _Step(nn.Module):
    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model = model

    def forward(
        self, words_B: Tensor, keys_LBHPK: Tensor, values_LBHPK: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        past = _Appended(keys_LBHPK, values_LBHPK)
        hidden_BD = self.model(words_B.unsqueeze(1), past).squeeze(1)
        log_probs_BV = self.model.output.log_probs(hidden_BD)
        return log_probs_BV, torch.stack(past.keys), torch.stack(past.values)


class _Appended:
    """A `Past` without state: earlier words come as tensors, and new ones leave as tensors."""

    def __init__(self, keys_LBHPK: Tensor, values_LBHPK: Tensor):
        self.position: int | Tensor = keys_LBHPK.shape[3]
        self.keys, self.values = list(keys_LBHPK.unbind()), list(values_LBHPK.unbind())

    def admit(self, hidden_BTD: Tensor) -> None:
        pass

    def visible(self, number: int) -> None:
        """A single new word sees everything."""

    def extend(self, layer: int, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        self.keys[layer] = torch.cat([self.keys[layer], key_BHTK], dim=2)
        self.values[layer] = torch.cat([self.values[layer], value_BHTK], dim=2)
        return self.keys[layer], self.values[layer]

    def advance(self, number: int) -> None:
        pass


def _program(
    module: nn.Module, arguments: tuple[Tensor, ...], shapes: tuple[dict[int, Dim], ...]
) -> ExportedProgram:
    if module.model.training:  # type: ignore[union-attr]
        raise ValueError("model: it is in training mode, with dropout; call model.eval()")
    # Arguments must be tensors of their own: one passed twice is one input to the exporter.
    with torch.no_grad():
        program = torch.export.export(module.eval(), arguments, dynamic_shapes=shapes)
        plain: ExportedProgram = program.run_decompositions(_replacements(program))
    return plain


def _replacements(program: ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """What to put in the place of each of this package's operators that the program calls."""
    found = {}
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "zipflm":
            name = node.target._opname
            kind = "linear_nll" if name.startswith("linear_nll") else name
            found[node.target] = _PLAIN[kind]
    return found


def _plain_ids(ids: Tensor, active: Tensor | None, name: str, size: int) -> Tensor:
    is_valid = (ids >= 0) & (ids < size)
    if active is not None:
        is_valid = is_valid | ~active
    torch._assert_async(is_valid.all(), f"{name}: an id lies outside the vocabulary of {size}")
    return ids.clone() if active is None else ids.where(active, 0)


def _plain_rotations(hidden_BTD: Tensor, head_dim: int, start: int) -> tuple[Tensor, Tensor]:
    return rotations(hidden_BTD.shape[1], head_dim, hidden_BTD.device, start)


def _plain_nll(
    hidden_NE: Tensor, weight_VE: Tensor, targets_N: Tensor, active_N: Tensor
) -> tuple[Tensor, Tensor]:
    nll_N = reference.linear_nll(hidden_NE, weight_VE, targets_N, active_N)
    return nll_N, nll_N.clone()  # the second result is for gradients, which nobody takes


_PLAIN: dict[str, Callable[..., Any]] = {
    "checked_ids": _plain_ids,
    "rotations": _plain_rotations,
    "linear_nll": _plain_nll,
}


def _device_of(model: LanguageModel) -> torch.device:
    return next(model.parameters()).device
