"""One update: forward and backward over its micro-batches, then clip and apply the gradients.

The loss of an update is the summed nll of all scored tokens, over all micro-batches and all
processes, divided by the number of those tokens. Gradients are therefore accumulated as sums and
divided once, so an update does not depend on how its tokens are spread.

Nothing in this file waits for the device. A non-finite loss or gradient is detected there, and the
optimizers skip the update there. The host finds out one update later (`ResultReader`), when the
numbers have long arrived, and so stays one update ahead of the device.

That is why an update counts as an attempt: a skipped one, which float16 produces now and then,
still uses up its batches and one step of the schedule. fairseq does not count skipped updates (its
`num_updates` stays where it is) and has to wait for every update to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.model.decoders.constant_state import States
from zipflm.model.inputs import UniqueTokens, sparse_tables
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision, autocast, dtype_of_sums
from zipflm.training import optimizers, parallel
from zipflm.training.carried_state import CarriedState, carried_state
from zipflm.training.compilation import Compilation
from zipflm.training.distributed import Process
from zipflm.training.parallel import local_shard
from zipflm.training.stream import accumulation, blocks_of

_CLIP_EPS = 1e-6  # fairseq's
_SCALE_START = 128.0  # fairseq's; the loss is a sum over tokens, so no large factor is needed
_SCALE_WINDOW = 2000


class Scorer(nn.Module):
    """`LanguageModel.nll_sum` as a forward, which is where DDP and FSDP hook in; with the state
    after the words, if it is given the one before them."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        words: Tensor | UniqueTokens,
        targets: Tensor,
        scored: Tensor,
        state: States | None = None,
    ) -> Tensor | tuple[Tensor, States]:
        if state is None:
            return self.model.nll_sum(words, targets, scored)
        hidden_BTD, after = self.model.decoder(self.model.input(words), state)
        nll = self.model.output.nll_sum(hidden_BTD, targets, scored)
        return nll, tuple(each.detach() for each in after)


class LossScale:
    """The factor that keeps float16 gradients in range: halved when they overflow, doubled after
    2000 updates without an overflow. The other precisions do not need it: there it stays 1."""

    def __init__(self, is_used: bool, device: torch.device) -> None:
        self._is_used = is_used
        self.value: Tensor = torch.tensor(_SCALE_START if is_used else 1.0, device=device)
        self.num_good: Tensor = torch.zeros((), device=device)

    def adapt(self, bad: Tensor) -> None:
        if not self._is_used:
            return
        # In place, where a recorded update finds them again.
        num_good = torch.where(bad, 0.0, self.num_good + 1)
        grows = num_good >= _SCALE_WINDOW
        self.value.mul_(torch.where(bad, 0.5, torch.where(grows, 2.0, 1.0)))
        self.num_good.copy_(torch.where(grows, 0.0, num_good))

    def dump(self) -> tuple[float, float] | None:
        """The scale and the number of good updates in a row; None if no scale is used."""
        return (self.value.item(), self.num_good.item()) if self._is_used else None

    def load(self, saved: tuple[float, float] | None) -> None:
        """Restore what `dump` gave. After a change of precision there is nothing to restore: a
        run that now needs a scale starts with the usual one."""
        if self._is_used and saved is not None:
            self.value.fill_(saved[0])
            self.num_good.fill_(saved[1])


class UpdateResult(NamedTuple):
    """What the host wants to know about an update, summed over all processes."""

    nll: float
    """Of all scored tokens."""
    tokens: float
    """Scored tokens."""
    words: float
    """Scored tokens that end a word."""
    norm: float
    """Of the gradient of the mean, before clipping."""
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
    precision: Precision
    clip_norm: float
    ends_word: Tensor | None = None
    """[V] on the device: whether an id ends a word. None if every id does."""
    compilation: Compilation | None = None
    """None if nothing is to be compiled."""
    tables: Sequence[nn.Parameter] = ()
    """Those of which each process has its own rows (`model.sharded_tables`)."""
    carried: CarriedState | None = None
    """Where the decoder's state goes on from update to update; None if it begins anew."""

    @property
    def compiled(self) -> bool | None:
        """Whether all training so far ran compiled; None if it was not asked to."""
        return None if self.compilation is None else self.compilation.is_complete

    @property
    def num_versions(self) -> int:
        """How many versions of the model have been compiled so far."""
        return 0 if self.compilation is None else self.compilation.num_versions


def build_learner(
    config: Config,
    model: LanguageModel,
    process: Process,
    ends_word: Tensor | None = None,
    fill: Callable[[], None] | None = None,
) -> Learner:
    """The model on its device, with everything that trains it.

    `fill` is for a model on the meta device, which gets memory where it is to be trained, and
    then its values from `fill`; any other model is moved there. `ends_word` [V] tells which ids
    end a word; without it, all do.
    """
    training = config.training
    model.decoder.set_recompute(training.recompute)
    tables = parallel.share_tables(model, process, training.tables)
    scorer = Scorer(model)
    compilation = None
    if training.compile and config.decoder.is_compilable:
        # FSDP gathers the weights of one layer at a time, between layers, and tokens come to
        # sharded tables before the first and behind the last: not inside compiled code. Nor can
        # that return a sparse gradient.
        shards = parallel.shards(process, training.parallel) or bool(tables)
        by_layer = shards or config.input.has_sparse_gradients
        compilation = Compilation(
            model.decoder.layers if by_layer else [scorer], config.batches.blocks.has_one_length
        )
    accumulates = max(accumulation(config, process, block) for block in blocks_of(config)) > 1

    def place() -> None:
        if fill is None:
            model.to(process.device)
            return
        parallel.allocate(model, process.device)
        fill()

    policy = parallel.sharded_precision(training.dtype, accumulates)
    wrapped = parallel.wrap(scorer, model, process, training.parallel, policy, place, tables)
    return Learner(
        model=model,
        scorer=wrapped,
        optimizers=optimizers.build(training.optimizer, model),
        scale=LossScale(training.dtype == "float16", process.device),
        process=process,
        precision=training.dtype,
        clip_norm=training.clip_norm,
        ends_word=None if ends_word is None else ends_word.to(process.device),
        compilation=compilation,
        tables=[model.get_parameter(name) for name in tables],
        carried=carried_state(config, model, process, config.batches.block),
    )


def update(learner: Learner, batches: Sequence[Batch], stop: bool | Tensor = False) -> Tensor:
    """Learn from the micro-batches of one update; an `UpdateResult` as a tensor on the device.

    `stop`, whether this process was asked to stop, may be a tensor [1] on the device.
    """
    device = learner.process.device
    sums = torch.zeros(3, dtype=dtype_of_sums(device), device=device)
    for index, batch in enumerate(batches):
        with parallel.accumulating(learner.scorer, index == len(batches) - 1):
            if learner.carried is None:
                nll = forward(learner, batch)
                backward(learner, nll)
            else:
                nll, after = forward(learner, batch, learner.carried.states[index])
                backward(learner, nll)
                learner.carried.keep(index, after)
        sums += sums_of(learner, batch, nll)
    return apply_gradients(learner, sums, stop)


def forward(learner: Learner, batch: Batch, *state: States) -> Any:
    """The summed nll of a micro-batch; after a state, the state after it as well."""
    with autocast(learner.precision, learner.process.device):
        return learner.scorer(batch.inputs, batch.targets, batch.scored, *state)


def backward(learner: Learner, nll: Tensor) -> None:
    """Add the gradient of a micro-batch's summed nll to what has been accumulated."""
    (nll * learner.scale.value).backward()  # type: ignore[no-untyped-call]


def sums_of(learner: Learner, batch: Batch, nll: Tensor) -> Tensor:
    """nll, tokens and words of a micro-batch, for `apply_gradients`."""
    ends = batch.scored
    if learner.ends_word is not None:
        ends = ends & learner.ends_word[batch.targets]
    dtype = dtype_of_sums(nll.device)
    return torch.stack([each.to(dtype) for each in (nll.detach(), batch.scored.sum(), ends.sum())])


@torch.no_grad()
def apply_gradients(learner: Learner, sums: Tensor, stop: bool | Tensor = False) -> Tensor:
    """Divide, clip and apply the accumulated gradients; `sums` [3] as of `sums_of`, added up."""
    if not isinstance(stop, Tensor):
        # A tensor made from it would be copied to the device, which waits; filling does not.
        stop = torch.full_like(sums[:1], float(stop))
    totals = torch.cat([sums, stop])
    nll, tokens, words, stops = learner.process.add_up(totals)
    for table in sparse_tables(learner.model):
        if table.grad is not None:
            # The mean over the processes, as DDP makes it of the others.
            sums_of_rows = learner.process.add_up(table.grad.coalesce()).coalesce()
            table.grad = sums_of_rows / learner.process.world_size
    if learner.tables:
        # Theirs are sums over the processes: averages, too, so that all can be treated alike.
        sums_here = [local_shard(p.grad) for p in learner.tables if p.grad is not None]
        torch._foreach_div_(sums_here, learner.process.world_size)
    grads = [p.grad for p in learner.model.parameters() if p.grad is not None]
    # DDP and FSDP average over the processes what was meant to be a sum.
    divisor = tokens.clamp(min=1) * learner.scale.value / learner.process.world_size
    norm = _norm(grads) / divisor
    bad = ~(torch.isfinite(norm) & torch.isfinite(nll))
    if learner.clip_norm:
        divisor = divisor / (learner.clip_norm / (norm + _CLIP_EPS)).clamp(max=1)
    optimizers.step(learner.optimizers, divisor, bad)
    learner.scale.adapt(bad)
    return torch.stack([nll, tokens, words, norm, bad.to(nll.dtype), stops])


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """Of all gradients together, in which every element counts once, whoever has it."""
    each = [grad._values() if grad.is_sparse else grad for grad in grads]
    kinds = [[g for g in each if isinstance(g, DTensor) == is_sharded] for is_sharded in (0, 1)]
    norms = [torch.nn.utils.get_total_norm(kind, foreach=True) for kind in kinds if kind]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return whole[0] if len(whole) == 1 else torch.linalg.vector_norm(torch.stack(whole))


class ResultReader:
    """Copies results to the host in the background; each is read when the next one is sent."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, torch.cuda.Event | None] | None = None

    def send(self, result: Tensor) -> list[UpdateResult]:
        """Start copying this result; return the one before it, if there is one."""
        arrived = self.drain()
        host = torch.empty_like(result, device="cpu", pin_memory=result.is_cuda)
        host.copy_(result, non_blocking=True)
        event = None
        if result.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending = host, event
        return arrived

    def drain(self) -> list[UpdateResult]:
        """Wait for the result that is still being copied, if there is one."""
        if self._pending is None:
            return []
        host, event = self._pending
        if event is not None:
            event.synchronize()
        self._pending = None
        return [UpdateResult(*host.tolist())]
