"""One update: forward and backward over its micro-batches, then clip and apply the gradients.

The loss of an update is the summed negative log-likelihood (nll) of all scored tokens, over all
micro-batches and processes, divided by the number of scored tokens. Gradients are accumulated as
sums and divided once, so an update does not depend on how its tokens are distributed.

`update` does not wait for the device, except for sparse gradients. Non-finite losses and gradients
are detected on the device, and the optimizers skip the update there. The host reads the result one
update later (`ResultReader`), so it stays one update ahead of the device.

For this reason a skipped update, which occasionally happens with float16, still uses up its batches
and one step of the schedule. fairseq does not count skipped updates, so it has to wait for the
result of every update.
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
from zipflm.distributed.processes import Process
from zipflm.model.decoders.constant_state import ConstantStateDecoder, States
from zipflm.model.inputs import UniqueTokens, sparse_tables
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision, autocast, dtype_of_sums
from zipflm.runs.sharded import StoredTensors
from zipflm.training import optimizers, parallel
from zipflm.training.compilation import Compilation
from zipflm.training.parallel import local_shard
from zipflm.training.stream import accumulation, blocks_of

_CLIP_EPS = 1e-6
"""Added to the gradient norm before dividing by it, as in fairseq."""
_SCALE_START = 128.0
"""Initial loss scale, as in fairseq. The loss is a sum over tokens, so no large factor is
needed."""
_SCALE_WINDOW = 2000
"""Number of good updates after which the loss scale is doubled."""


class Scorer(nn.Module):
    """Module whose forward is `LanguageModel.nll_sum`, for DDP and FSDP. Given a decoder state, it
    also returns the state after the last token."""

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
        return nll, tuple(tensor.detach() for tensor in after)


class LossScale:
    """The loss scale for float16: halved after an update with a non-finite loss or gradient,
    doubled after 2000 good updates since it last changed. Other precisions use 1."""

    def __init__(self, is_used: bool, device: torch.device) -> None:
        self._is_used = is_used
        self.value: Tensor = torch.tensor(_SCALE_START if is_used else 1.0, device=device)
        self.num_good: Tensor = torch.zeros((), device=device)

    def adapt(self, bad: Tensor) -> None:
        if not self._is_used:
            return
        # In place, because a CUDA graph reads these tensors.
        num_good = torch.where(bad, 0.0, self.num_good + 1)
        should_grow = num_good >= _SCALE_WINDOW
        self.value.mul_(torch.where(bad, 0.5, torch.where(should_grow, 2.0, 1.0)))
        self.num_good.copy_(torch.where(should_grow, 0.0, num_good))

    def dump(self) -> tuple[float, float] | None:
        """Return the scale and the number of good updates since it last changed, or None if scaling
        is off."""
        return (self.value.item(), self.num_good.item()) if self._is_used else None

    def load(self, saved: tuple[float, float] | None) -> None:
        """Restore the result of `dump`. None keeps the initial scale: the run was saved with
        another precision."""
        if self._is_used and saved is not None:
            self.value.fill_(saved[0])
            self.num_good.fill_(saved[1])


class CarriedState:
    """Decoder states, one for each batch of an update in this process, for truncated
    backpropagation through time: each update starts with the state after the previous one.

    This is for decoders with a state of constant size, in break mode `stream`, where the rows of an
    update continue those of the previous one. An update has one group of rows per batch. The state
    of a group stays in the process that trains on it, and is saved with checkpoints.
    """

    def __init__(self, model: LanguageModel, process: Process, groups: int, rows: int) -> None:
        """An update has `groups` batches over all processes, each with `rows` rows."""
        assert isinstance(model.decoder, ConstantStateDecoder)
        like = torch.empty(0, device=process.device)
        self._process, self._groups = process, groups
        local = range(process.rank, groups, process.world_size)
        self.states: list[States] = [model.decoder.start(rows, like) for _ in local]

    @torch.no_grad()
    def keep(self, index: int, after: States) -> None:
        """Keep the state after batch `index` for the next update."""
        for kept, now in zip(self.states[index], after, strict=True):
            # A skipped update can leave NaN or infinity, which would spoil all later updates.
            kept.copy_(now.nan_to_num(0.0, 0.0, 0.0))

    def reset(self) -> None:
        for tensor in (tensor for state in self.states for tensor in state):
            tensor.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Return the states of all groups by name. The result is the same in all processes."""
        tensors: dict[str, Tensor] = {}
        for index, parts in enumerate(zip(*self.states, strict=True)):
            local = torch.stack(parts)
            full = local.new_zeros(self._groups, *local.shape[1:])
            full[self._process.rank :: self._process.world_size] = local
            tensors[f"carried/{index}"] = self._process.all_reduce(full)
        return tensors

    def load(self, stored: StoredTensors) -> None:
        """Restore the result of `tensors`. Does nothing if the shapes differ, e.g. because the
        batch size has changed."""
        tensors = {name: torch.zeros_like(tensor) for name, tensor in self.tensors().items()}
        if any(stored.shapes.get(name) != tuple(t.shape) for name, t in tensors.items()):
            return
        stored.load_into(tensors)
        for index, full in enumerate(tensors.values()):
            local = full[self._process.rank :: self._process.world_size]
            for state, part in zip(self.states, local, strict=True):
                state[index].copy_(part)


def build_carried_state(
    config: Config, model: LanguageModel, process: Process, block: int
) -> CarriedState | None:
    """Return zero states, as at the start of an epoch, or None if this run carries no state."""
    if config.batches.break_mode != "stream" or not config.decoder.has_constant_state:
        return None
    rows = config.batches.tokens // block
    groups = config.training.tokens_per_update // (rows * block)
    return CarriedState(model, process, groups, rows)


class UpdateResult(NamedTuple):
    """Results of an update over all processes."""

    nll: float
    """Summed nll of all scored tokens, in nats."""
    tokens: float
    """Number of scored tokens."""
    words: float
    """Number of scored tokens that end a word."""
    norm: float
    """Norm of the gradient of the mean nll, before clipping."""
    bad: float
    """1 if the update was skipped, else 0."""
    stop: float
    """Number of processes that received a request to stop."""


@dataclass
class Learner:
    """The model, its optimizers and the other state that an update needs."""

    model: LanguageModel
    scorer: nn.Module
    """The `Scorer`, wrapped in DDP or FSDP if there are several processes."""
    optimizers: list[Optimizer]
    scale: LossScale
    process: Process
    precision: Precision
    clip_norm: float
    ends_word: Tensor | None = None
    """[V] on the device, True for ids that end a word. None if all do."""
    compilation: Compilation | None = None
    """None if compilation is off or the decoder cannot be compiled."""
    tables: Sequence[nn.Parameter] = ()
    """Tables sharded by rows (`model.sharded_tables`)."""
    carried: CarriedState | None = None
    """Decoder states carried from update to update, if any."""

    @property
    def compiled(self) -> bool | None:
        """True if all updates of this process ran compiled; None without compilation."""
        return None if self.compilation is None else self.compilation.is_complete

    @property
    def num_versions(self) -> int:
        return 0 if self.compilation is None else self.compilation.num_versions


def build_learner(
    config: Config,
    model: LanguageModel,
    process: Process,
    ends_word: Tensor | None = None,
    fill: Callable[[], None] | None = None,
) -> Learner:
    """Move a model to its device and create everything needed to train it.

    With `fill`, the model can be on the meta device: it is allocated, and `fill` sets its weights.
    `ends_word` [V] marks the ids that end a word; by default all do.
    """
    training = config.training
    model.decoder.set_recompute(training.recompute)
    tables = parallel.shard_tables_if_configured(model, process, training)
    scorer = Scorer(model)
    compilation = None
    if training.compile and config.decoder.is_compilable:
        # FSDP gathers weights between layers, and sharded tables exchange tokens before the first
        # and after the last layer, outside compiled code. Sparse gradients cannot be compiled.
        is_sharded = parallel.should_shard(process, training) or bool(tables)
        by_layer = is_sharded or config.input.sparse
        compilation = Compilation(
            model.decoder.layers if by_layer else [scorer], config.batches.blocks.has_one_length
        )
    is_accumulated = max(accumulation(config, process, block) for block in blocks_of(config)) > 1

    def move() -> None:
        if fill is None:
            model.to(process.device)
            return
        parallel.allocate(model, process.device)
        fill()

    wrapped = parallel.wrap(scorer, model, process, training, is_accumulated, move, tables)
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
        carried=build_carried_state(config, model, process, config.batches.block),
    )


def update(learner: Learner, batches: Sequence[Batch], stop: bool | Tensor = False) -> Tensor:
    """Run one update on its micro-batches. Return an `UpdateResult` as a tensor on the device.

    `stop` asks all processes to stop. It can be a tensor [1] on the device.
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
    """Return the summed nll of a micro-batch, and the new state if one is given."""
    with autocast(learner.precision, learner.process.device):
        return learner.scorer(batch.inputs, batch.targets, batch.scored, *state)


def backward(learner: Learner, nll: Tensor) -> None:
    """Accumulate the gradient of the summed nll of a micro-batch."""
    (nll * learner.scale.value).backward()  # type: ignore[no-untyped-call]


def sums_of(learner: Learner, batch: Batch, nll: Tensor) -> Tensor:
    """Return the nll and the numbers of tokens and words of a micro-batch, as a tensor [3]."""
    ends_word = batch.scored
    if learner.ends_word is not None:
        ends_word = ends_word & learner.ends_word[batch.targets]
    dtype = dtype_of_sums(nll.device)
    return torch.stack(
        [value.to(dtype) for value in (nll.detach(), batch.scored.sum(), ends_word.sum())]
    )


@torch.no_grad()
def apply_gradients(learner: Learner, sums: Tensor, stop: bool | Tensor = False) -> Tensor:
    """Divide, clip and apply the gradients. Return an `UpdateResult` as a tensor on the device.

    `sums` [3] is the sum of the results of `sums_of` over the micro-batches of this process.
    """
    if not isinstance(stop, Tensor):
        # Filling a tensor on the device does not wait for it, unlike copying one from the host.
        stop = torch.full_like(sums[:1], float(stop))
    totals = torch.cat([sums, stop])
    nll, tokens, words, stops = learner.process.all_reduce(totals)
    for table in sparse_tables(learner.model):
        if table.grad is not None:
            # The mean over processes, as DDP computes it for the other gradients.
            sums_of_rows = learner.process.all_reduce(table.grad.coalesce()).coalesce()
            table.grad = sums_of_rows / learner.process.world_size
    if learner.tables:
        # These are sums over processes; average them like the others.
        sums_here = [local_shard(p.grad) for p in learner.tables if p.grad is not None]
        torch._foreach_div_(sums_here, learner.process.world_size)
    grads = [p.grad for p in learner.model.parameters() if p.grad is not None]
    # DDP and FSDP average gradients over processes, but the sum is needed.
    divisor = tokens.clamp(min=1) * learner.scale.value / learner.process.world_size
    norm = _norm(grads) / divisor
    bad = ~(torch.isfinite(norm) & torch.isfinite(nll))
    if learner.clip_norm:
        divisor = divisor / (learner.clip_norm / (norm + _CLIP_EPS)).clamp(max=1)
    optimizers.step(learner.optimizers, divisor, bad)
    learner.scale.adapt(bad)
    return torch.stack([nll, tokens, words, norm, bad.to(nll.dtype), stops])


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients, counting every element once over all processes."""
    dense = [grad._values() if grad.is_sparse else grad for grad in grads]
    kinds = [[g for g in dense if isinstance(g, DTensor) == is_sharded] for is_sharded in (0, 1)]
    norms = [torch.nn.utils.get_total_norm(kind, foreach=True) for kind in kinds if kind]
    full = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return full[0] if len(full) == 1 else torch.linalg.vector_norm(torch.stack(full))


class ResultReader:
    """Copies results to the host asynchronously. A result is read when the next one is sent."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, torch.cuda.Event | None] | None = None

    def send(self, result: Tensor) -> list[UpdateResult]:
        """Start copying this result. Return the previous one, if any."""
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
        """Wait for the result that is still being copied and return it, if any."""
        if self._pending is None:
            return []
        host, event = self._pending
        if event is not None:
            event.synchronize()
        self._pending = None
        return [UpdateResult(*host.tolist())]
