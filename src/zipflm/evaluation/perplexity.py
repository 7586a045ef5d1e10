"""Scoring batches with a model: every target once, whatever blocks and contexts they come in.

Batches hold several windows; only what is scored goes through the output layer, so that a window
of context costs its pass through the decoder and no more. No table of tokens by words is built.
Nothing waits for the device but a collection of results every few batches.

`score` keeps the nll of every token. `evaluate` keeps sums only: training's pass over the valid
set, in any order and on several processes. The unit of a perplexity is always the word: the
pieces of a word add up to it, so BPE and word models compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.batches import Batch, Batches, Windows
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.evaluation.scores import Protocol, TokenScores
from zipflm.model.language_model import LanguageModel

Precision = Literal["float32", "bfloat16", "float16"]

# Batches whose results wait on the device: collecting them stalls it, so seldom.
_PENDING = 32


@torch.inference_mode()
def score(
    model: LanguageModel,
    batches: Batches,
    *,
    device: torch.device | str,
    ends_word: NDArray[np.bool_],
    precision: Precision = "float32",
) -> TokenScores:
    """nll of every token of a split, in the order of the text.

    `ends_word` [V] tells which ids end a word. The model is put into evaluation mode and onto the
    device. Raises ValueError if a log-probability is not finite.
    """
    model = model.to(device).eval()
    num_tokens = len(batches.tokens.ids)
    nll = np.zeros(num_tokens, dtype=np.float32)
    seen = np.zeros(num_tokens, dtype=np.uint8)
    positions = 0
    pending: list[tuple[NDArray[np.int64], Tensor]] = []
    for index in range(len(batches)):
        windows = batches.windows(0, index)
        places = _scored_places(windows)
        positions += int((windows.end - windows.first).sum())
        seen[places] += 1
        with _autocast(device, precision):
            pending.append((places, _scored_nll(model, batches.batch(0, index), device)))
        if len(pending) == _PENDING:
            _collect(pending, nll)
    _collect(pending, nll)
    if not (seen == 1).all():
        raise ValueError("these batches do not hold every token once; give all ranks' batches")
    _require_finite(nll)
    return _scores(batches, nll, ends_word, positions, precision)


def _scored_nll(model: LanguageModel, batch: Batch, device: torch.device | str) -> Tensor:
    """nll of the scored tokens of a batch, row by row, still on the device."""
    chosen = batch.scored.flatten().nonzero().squeeze(1)
    targets = batch.targets.flatten()[chosen]
    words, targets, chosen = _on_device((batch.words, targets, chosen), torch.device(device))
    hidden = model(words).flatten(0, 1)[chosen]
    return model.output.nll(hidden, targets)


def _on_device(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    if device.type != "cuda":
        return tuple(tensor.to(device) for tensor in tensors)
    # From pinned memory, because a copy from elsewhere would wait for the device.
    return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)


def _scored_places(windows: Windows) -> NDArray[np.int64]:
    """Positions in the text of what a batch scores, row by row."""
    lengths = windows.end - windows.start
    ends = np.cumsum(lengths)
    places: NDArray[np.int64] = np.repeat(windows.start - (ends - lengths), lengths)
    return places + np.arange(len(places))


def _collect(pending: list[tuple[NDArray[np.int64], Tensor]], nll: NDArray[np.float32]) -> None:
    if not pending:
        return
    places = np.concatenate([place for place, _ in pending])
    nll[places] = torch.cat([values for _, values in pending]).float().cpu().numpy()
    pending.clear()


def _autocast(device: torch.device | str, precision: Precision) -> AbstractContextManager[object]:
    if precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=getattr(torch, precision))


def _require_finite(nll: NDArray[np.float32]) -> None:
    bad = np.count_nonzero(~np.isfinite(nll))
    if bad:
        raise ValueError(
            f"the model gives {bad} of {len(nll)} tokens no finite log-probability: its training "
            "diverged; evaluate an earlier checkpoint, or in float32 if this was another precision"
        )


def _scores(
    batches: Batches,
    nll: NDArray[np.float32],
    ends_word: NDArray[np.bool_],
    positions: int,
    precision: str,
) -> TokenScores:
    targets = np.asarray(batches.tokens.ids).astype(np.int64)
    ends = np.asarray(ends_word, dtype=np.bool_)[targets]
    protocol = Protocol(
        unit="word" if ends_word.all() else "bpe",
        break_mode=batches.break_mode,
        block=batches.block,
        context=batches.context,
        tokens=len(nll),
        words=int(np.count_nonzero(ends)) + (not ends[-1]),
        unk=int(np.count_nonzero(targets == UNKNOWN)),
        eos=int(np.count_nonzero(targets == END)),
        positions=positions,
        precision=precision,
    )
    return TokenScores(targets, nll, ends, protocol)


@dataclass(frozen=True)
class Scores:
    """Sums over scored tokens; those of several processes or files add up."""

    nll: float
    """In nats."""
    tokens: int
    words: int
    """Tokens that end a word; `</s>` is one."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / max(self.tokens, 1)

    @property
    def perplexity(self) -> float:
        """exp(nats per word)."""
        per_word = self.nll / max(self.words, 1)
        return math.exp(per_word) if per_word < 700 else math.inf

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.nll + other.nll, self.tokens + other.tokens, self.words + other.words)


@torch.no_grad()
def evaluate(
    nll: Callable[[Tensor, Tensor, Tensor], Tensor],
    batches: Iterable[Batch],
    device: torch.device | str,
    ends_word: Tensor | None = None,
) -> Scores:
    """Score every batch with `nll(words, targets, scored)`; reads the device once, at the end.

    `ends_word` [V] tells which ids end a word; without it all do. The caller puts the model into
    evaluation mode.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    if ends_word is not None:
        ends_word = ends_word.to(device)
    for batch in batches:
        batch = batch.to(device, non_blocking=True)
        ends = batch.scored if ends_word is None else batch.scored & ends_word[batch.targets]
        totals[0] += nll(batch.words, batch.targets, batch.scored).sum(dtype=torch.float64)
        totals[1] += batch.scored.sum()
        totals[2] += ends.sum()
    total, tokens, words = totals.tolist()
    return Scores(total, int(tokens), int(words))
