"""Truncated backpropagation through time: each update starts with the state after the previous one.

This is for decoders with a state of constant size, in break mode `stream`, where the rows of an
update continue those of the previous one. An update has one group of rows per batch. The state of a
group stays in the process that trains on it, and is saved with checkpoints, so a resumed run gives
the same results as an uninterrupted one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zipflm.config import Config
from zipflm.distributed.processes import Process
from zipflm.model.decoders.constant_state import ConstantStateDecoder, States
from zipflm.model.language_model import LanguageModel
from zipflm.runs.sharded import StoredTensors


class CarriedState:
    """Decoder states, one for each batch of an update in this process."""

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
