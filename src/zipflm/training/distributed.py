"""One process or many, with torch's own DDP or FSDP2 over NCCL or gloo.

Both DDP and FSDP2 average gradients over the processes. The loss here is a sum over tokens, divided
by their number in all processes, so whoever uses the gradients multiplies by `world_size` (see
`step`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from zipflm.config import Tie
from zipflm.evaluation.device import usable_device
from zipflm.model.inputs import sparse_tables
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision
from zipflm.model.sharded_tables import TableShards, shard_tables
from zipflm.training.meeting import meet
from zipflm.training.team import Team, described
from zipflm.training.whereabouts import LIMIT, LONG, NO_LIMIT, Stage
from zipflm.troubles import in_words

Parallel = Literal["ddp", "fsdp"]
Tables = Literal["replicated", "sharded"]
T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """This process among all of them, and its device."""

    rank: int
    world_size: int
    device: torch.device
    team: Team | None = field(default=None, compare=False)
    """All of them, to agree with; None for a process alone."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def note(self, stage: Stage, update: int = -1) -> None:
        """This process is about to do that; after how many updates, in a run."""
        if self.team is not None:
            self.team.note(stage, update)

    def count(self) -> None:
        """One more batch of what was noted last is done."""
        if self.team is not None:
            self.team.count()

    # As a share in scoring (`evaluation.sharing`).

    def all_values(self, value: T) -> list[T]:
        return all_values(value, self)

    def add_up(self, tensor: Tensor) -> Tensor:
        return add_up(tensor, self)

    def done_by_all(self, work: Callable[[], T]) -> T:
        return done_by_all(work, self)


_team: Team | None = None
"""Of the `started` that has joined the processes, for those inside it."""


@contextmanager
def started(device: str | None = None, stall_seconds: float = LIMIT) -> Iterator[Process]:
    """Join the processes that `torchrun` started, or be the only one.

    `device` is `cpu`, `cuda` or `cuda:N`; by default a GPU where there is one. Within another
    `started` nothing is joined or left: a second group would find the first one's addresses in
    torchrun's store. An error in one process ends them all (see `team`), and so does one that does
    not come for `stall_seconds` (see `whereabouts`); 0 lets them wait for ever.
    """
    global _team
    if not 0 <= stall_seconds < float("inf"):
        raise ValueError(f"--stall-seconds {stall_seconds}: give 0, for no limit, or more")
    place = torch.device(usable_device(device))
    # torchrun tells a process its place in the environment; nothing else is read from there.
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and place.type == "cuda":
        if place.index is not None:
            raise ValueError(f"--device {device}: each process takes its own GPU; use cuda")
        place = torch.device(usable_device(f"cuda:{os.environ['LOCAL_RANK']}"))
    if place.index is not None and place.type == "cuda":
        torch.cuda.set_device(place)
    if world_size == 1:
        yield Process(0, 1, place)
        return
    if dist.is_initialized():
        yield Process(dist.get_rank(), world_size, place, _team)
        return
    # Long enough for whatever our own limit allows: that one names updates and processes.
    longest = timedelta(seconds=2 * LONG * stall_seconds or NO_LIMIT)
    # torch's annotations leave its stores out.
    store, rank, _ = next(dist.rendezvous("env://", timeout=longest))  # type: ignore[attr-defined]
    attempt = meet(store, rank, world_size, longest.total_seconds())
    dist.init_process_group(
        # Hosts have something to tell each other, too, without waiting for their devices.
        "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
        store=dist.PrefixStore(f"{attempt}/torch", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world_size,
        timeout=longest,
    )
    _team = team = Team(rank, world_size, attempt, stall_seconds)
    try:
        with team.leaving_together():
            yield Process(rank, world_size, place, team)
    finally:
        _team = None
        dist.destroy_process_group()


def shards(process: Process, parallel: Parallel) -> bool:
    """Whether the processes share one model among them, instead of having a copy each."""
    return process.world_size > 1 and parallel == "fsdp"


def share_tables(model: LanguageModel, process: Process, tables: Tables) -> list[str]:
    """Leave this process its own rows of the model's tables, if they are to be sharded and there is
    somebody to share them with; the names of those of which it has a part from now on."""
    if process.world_size == 1 or tables == "replicated":
        return []
    return shard_tables(model, TableShards(_mesh(process)))


def wrap(
    scorer: nn.Module,
    model: LanguageModel,
    process: Process,
    parallel: Parallel,
    policy: MixedPrecisionPolicy,
    fill: Callable[[], None],
    tables: Sequence[str] = (),
) -> nn.Module:
    """`scorer`, which scores with `model`, on its device and in step with the other processes.

    `fill` gives the model memory and values: after it was sharded, so that there never is a whole
    one, and before copies are compared. `policy` is FSDP's. `tables` of the model are shared in
    another way (`share_tables`), so nobody else touches them.
    """
    if shards(process, parallel):
        _shard(scorer, model, process, policy, {model.get_parameter(name) for name in tables})
    fill()
    if process.world_size == 1 or shards(process, parallel):
        return scorer
    # DDP knows of sparse gradients in torch's own layers only: see `average_rows`.
    _hide({*(model.get_parameter(name) for name in tables), *sparse_tables(model)}, scorer)
    ids = [process.device.index] if process.device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 renames `broadcast_buffers`; 2.11 knows only this name. Our buffers are
        # constants, such as the spelling of every word, too large to send at every step.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            scorer, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )


def _mesh(process: Process) -> DeviceMesh:
    """All processes in a row."""
    return init_device_mesh(process.device.type, (process.world_size,))


def _hide(params: set[nn.Parameter], scorer: nn.Module) -> None:
    """Have DDP leave these alone."""
    names = [name for name, param in scorer.named_parameters() if param in params]
    ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(scorer, names)  # type: ignore[no-untyped-call]


def _shard(
    scorer: nn.Module,
    model: LanguageModel,
    process: Process,
    policy: MixedPrecisionPolicy,
    tables: set[nn.Parameter],
) -> None:
    """Shard every layer of the decoder by itself, the tables by themselves, then what is left;
    `tables` are sharded already, and the rest of their layers is small."""
    mesh = _mesh(process)
    # FSDP refuses a weight without a number, which the classes of a softmax without tails are.
    empty = {param for param in model.parameters() if not param.numel()}
    for layer in model.decoder.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if not tables:
        _shard_tables(model, mesh, policy, empty)
    fully_shard(scorer, mesh=mesh, mp_policy=policy, ignored_params=tables | empty)


def _shard_tables(
    model: LanguageModel, mesh: DeviceMesh, policy: MixedPrecisionPolicy, empty: set[nn.Parameter]
) -> None:
    """Have FSDP shard the layers that have the tables."""
    # The backward pass begins with the output layer: its tables stay until then. Tied ones are
    # the input layer's, so that both layers are one unit, gathered once.
    if model.config.tie == Tie.NONE:
        fully_shard(model.input, mesh=mesh, mp_policy=policy)
        units: nn.Module | list[nn.Module] = model.output
    else:
        units = [model.input, model.output]
    fully_shard(
        units, mesh=mesh, mp_policy=policy, reshard_after_forward=False, ignored_params=empty
    )
    # It is asked for these, never for a forward.
    for method in ("nll", "nll_sum"):
        register_fsdp_forward_method(model.output, method)


def sharded_precision(precision: Precision, accumulates: bool) -> MixedPrecisionPolicy:
    """How FSDP exchanges weights and gradients; the weights that the optimizer changes, and its
    state, are float32 in any case.

    Autocast goes on deciding in which type each operation computes. It would round the weights of
    every product to bfloat16, so they may as well travel like that. Gradients travel like that
    too, unless those of several batches are accumulated first: FSDP accumulates in the type in
    which it exchanges, and small addends would be lost in bfloat16. float16 has too narrow a range
    for sums of gradients over processes: there only autocast is used.
    """
    if precision != "bfloat16":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32 if accumulates else torch.bfloat16,
        cast_forward_inputs=False,
    )


def is_sharded(scorer: nn.Module) -> bool:
    """Whether this is a scorer that `wrap` has sharded."""
    return isinstance(scorer, FSDPModule)


@contextmanager
def accumulating(scorer: nn.Module, is_last: bool) -> Iterator[None]:
    """While a micro-batch runs: exchange gradients after the last one of an update only."""
    if isinstance(scorer, FSDPModule):
        scorer.set_requires_gradient_sync(is_last)
        yield
        return
    waits = isinstance(scorer, DistributedDataParallel) and not is_last
    with scorer.no_sync() if waits else nullcontext():  # type: ignore[operator]
        yield


def add_up(tensor: Tensor, process: Process) -> Tensor:
    """The sum over all processes, in place."""
    if process.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def average_rows(gradient: Tensor, process: Process) -> Tensor:
    """The mean over all processes of a sparse gradient, as DDP makes it of the others."""
    if process.world_size > 1:
        dist.all_reduce(gradient)
        gradient = gradient.coalesce() / process.world_size
    return gradient


def wait_for_all(process: Process) -> None:
    """Return when every process has got here."""
    if process.world_size > 1:
        dist.barrier()


def agree(problem: str, process: Process) -> str:
    """What is wrong with a piece of work that all processes did, each with its own view of it;
    empty if nothing is. Waits for all of them, without any time limit while all are well."""
    return process.team.agree(problem) if process.team is not None else problem


def require_same(name: str, value: int | None, process: Process, remedy: str) -> None:
    """ValueError in every process unless all have the same value, None or 0 or more; waits for
    all of them."""
    if process.world_size == 1:
        return
    own = torch.tensor(-1 if value is None else value, device=process.device)
    gathered = [torch.empty_like(own) for _ in range(process.world_size)]
    dist.all_gather(gathered, own)
    values = [None if number < 0 else number for number in (int(each) for each in gathered)]
    for rank, other in enumerate(values):
        if other != values[0]:
            raise ValueError(
                f"{name} is {values[0]} in process 0, but {other} in process {rank}; {remedy}"
            )


def all_values(value: T, process: Process) -> list[T]:
    """Everybody's value, in the order of the processes; waits for all of them."""
    if process.world_size == 1:
        return [value]
    values: list[Any] = [None] * process.world_size
    dist.all_gather_object(values, value)
    return values


def problem_anywhere(problem: str | None, process: Process) -> str | None:
    """The problem of the first process that has one, in every process; waits for all of them."""
    return next((found for found in all_values(problem, process) if found is not None), None)


def raise_together(problem: str | None, process: Process) -> None:
    """ValueError in every process if any of them has a problem; waits for all of them."""
    found = problem_anywhere(problem, process)
    if found is not None:
        raise ValueError(found)


def done_by_all(work: Callable[[], T], process: Process) -> T:
    """What this process gets by a piece of work that each does for itself, such as opening a
    folder; where that is an error for one of them, it is a ValueError for all of them."""
    if process.world_size == 1:
        return work()
    result, problem = None, ""
    try:
        result = work()
    except (ValueError, OSError, RuntimeError) as error:
        problem = described(error)
    problems = all_values(problem, process)
    if any(problems):
        if len(set(problems)) == 1:
            raise ValueError(problem)
        named = (f"process {rank}: {each}" for rank, each in enumerate(problems) if each)
        raise ValueError("; ".join(named))
    return cast(T, result)


def let_first(work: Callable[[], object], process: Process) -> None:
    """Have the first process do this while the others wait; its ValueError or OSError is a
    ValueError in all of them."""
    problem = None
    if process.is_first:
        try:
            work()
        except (ValueError, OSError) as error:
            problem = in_words(error) if isinstance(error, OSError) else str(error)
    raise_together(problem, process)


@contextmanager
def held_by_first(context: AbstractContextManager[object], process: Process) -> Iterator[None]:
    """A context, such as a lock, that the first process enters for all of them."""
    with ExitStack() as held:
        let_first(lambda: held.enter_context(context), process)
        yield


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, sharded or not, on the CPU; every process must call this."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().cpu()
