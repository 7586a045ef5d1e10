"""One update: forward and backward over its micro-batches, then clip and change the weights.

The loss of an update is the sum of the nll of all scored tokens, of all micro-batches and all
processes, divided by the number of these tokens. Gradients are therefore accumulated as sums and
divided once, which makes the update independent of how the tokens are spread.

Nothing in this file waits for the device. A non-finite loss or gradient is noticed there, and the
optimizers skip the update there; the host learns of it one update later (`Delayed`), when the
number has long arrived, and so stays ahead of the device by one update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from zipflm.data.batches import Batch
from zipflm.model.language_model import LanguageModel
from zipflm.training import distributed, optimizers
from zipflm.training.distributed import Process
from zipflm.training.nesterov import local

_CLIP_EPS = 1e-6  # fairseq's
_SCALE_START = 128.0  # fairseq's; the loss is a sum over tokens, so no large factor is needed
_SCALE_WINDOW = 2000


class Scorer(nn.Module):
    """`LanguageModel.nll` as a forward, which is where DDP and FSDP hook in."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, targets: Tensor, scored: Tensor) -> Tensor:
        # A copy, because FSDP cannot keep track of a view.
        return self.model.nll(words, targets, scored).clone()


class LossScale:
    """The factor that keeps float16 gradients in range: halved when they overflow, doubled after
    2000 updates in which they did not. 1 for the other precisions."""

    def __init__(self, is_used: bool, device: torch.device) -> None:
        self._is_used = is_used
        self.value = torch.tensor(_SCALE_START if is_used else 1.0, device=device)
        self.num_good = torch.zeros((), device=device)

    def adapt(self, bad: Tensor) -> None:
        if not self._is_used:
            return
        self.num_good = torch.where(bad, 0.0, self.num_good + 1)
        grows = self.num_good >= _SCALE_WINDOW
        self.value = self.value * torch.where(bad, 0.5, torch.where(grows, 2.0, 1.0))
        self.num_good = torch.where(grows, 0.0, self.num_good)

    def dump(self) -> tuple[float, float] | None:
        return (self.value.item(), self.num_good.item()) if self._is_used else None

    def load(self, saved: tuple[float, float] | None) -> None:
        """What `dump` gave, unless the precision has changed since."""
        if self._is_used and saved is not None:
            self.value.fill_(saved[0])
            self.num_good.fill_(saved[1])


class Outcome(NamedTuple):
    """What the host wants to know of an update."""

    nll: float
    """Sum over all scored tokens of all processes."""
    tokens: float
    words: float
    """Scored tokens that end a word."""
    norm: float
    """Of the gradient of the mean, before it was clipped."""
    bad: float
    """1 if the update was skipped."""
    stop: float
    """Number of processes that were asked to stop."""


@dataclass
class Learner:
    """What an update reads and changes."""

    model: LanguageModel
    scorer: nn.Module
    """The model behind DDP or FSDP."""
    optimizers: list[Optimizer]
    scale: LossScale
    process: Process
    precision: str
    clip_norm: float
    ends_word: Tensor | None = None


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Matrix products in 16 bits where asked; what must be exact stays in float32 by itself."""
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "float32")


def update(learner: Learner, batches: Sequence[Batch], stop: bool = False) -> Tensor:
    """Learn from the micro-batches of one update; an `Outcome` as a tensor on the device."""
    totals = torch.zeros(4, dtype=torch.float64, device=learner.process.device)
    for index, batch in enumerate(batches):
        with distributed.accumulating(learner.scorer, index == len(batches) - 1):
            nll = forward(learner, batch)
            backward(learner, nll)
        totals[0] += nll.detach()
        totals[1] += batch.scored.sum()
        ends = batch.scored
        if learner.ends_word is not None:
            ends = ends & learner.ends_word[batch.targets]
        totals[2] += ends.sum()
    totals[3].fill_(float(stop))  # plain assignment would copy, and wait for the device
    return change(learner, totals)


def forward(learner: Learner, batch: Batch) -> Tensor:
    """The summed nll of a micro-batch."""
    with autocast(learner.precision, learner.process.device):
        nll: Tensor = learner.scorer(batch.words, batch.targets, batch.scored)
    return nll.sum()


def backward(learner: Learner, nll: Tensor) -> None:
    (nll * learner.scale.value).backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def change(learner: Learner, totals: Tensor) -> Tensor:
    """Divide, clip and apply the accumulated gradients; `totals` are nll, tokens, words, stop."""
    nll, tokens, words, stop = distributed.add_up(totals, learner.process)
    params = [p for p in learner.model.parameters() if p.grad is not None]
    grads = [p.grad for p in params if p.grad is not None]
    # What the engines averaged over the processes was meant to be a sum.
    divisor = tokens.clamp(min=1) * learner.scale.value / learner.process.world_size
    norm = _norm(grads) / divisor
    bad = ~(torch.isfinite(norm) & torch.isfinite(nll))
    factor = 1 / divisor
    if learner.clip_norm:
        factor = factor * (learner.clip_norm / (norm + _CLIP_EPS)).clamp(max=1)
    torch._foreach_mul_([local(grad) for grad in grads], factor.float())
    optimizers.step(learner.optimizers, bad)
    learner.scale.adapt(bad)
    return torch.stack([nll, tokens, words, norm, bad.double(), stop])


def _norm(grads: Sequence[Tensor]) -> Tensor:
    norm = torch.nn.utils.get_total_norm(grads, foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class Delayed:
    """Outcomes on their way from the device; each is read when the next one is put in."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, torch.cuda.Event | None] | None = None

    def put(self, outcome: Tensor) -> list[Outcome]:
        """Send an outcome on its way and return the one before, if any."""
        arrived = self.flush()
        host = torch.empty_like(outcome, device="cpu", pin_memory=outcome.is_cuda)
        host.copy_(outcome, non_blocking=True)
        event = None
        if outcome.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending = host, event
        return arrived

    def flush(self) -> list[Outcome]:
        """Wait for what is on its way."""
        if self._pending is None:
            return []
        host, event = self._pending
        if event is not None:
            event.synchronize()
        self._pending = None
        return [Outcome(*host.tolist())]
