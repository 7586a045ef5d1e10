"""Truncated back-propagation: the decoder's state after one update is where the next one begins.

The rows of an update continue those of the one before (break mode `stream`). An update consists of
groups of rows, one per batch, of which the processes take turns; a group keeps its state where it
is, so that it can be saved, and so that a resumed run computes what an uninterrupted one would.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zipflm.config import Config
from zipflm.model.decoders.constant_state import ConstantStateDecoder, States
from zipflm.model.language_model import LanguageModel
from zipflm.runs.sharded import StoredTensors
from zipflm.training.distributed import Process

PREFIX = "carried/"
"""Of the names under which a checkpoint has the states, along with those of the optimizers."""


class CarriedState:
    """The states of this process's groups of rows, one for each of its batches of an update."""

    def __init__(self, model: LanguageModel, process: Process, groups: int, rows: int) -> None:
        """An update has `groups` batches of `rows` rows, over all processes."""
        assert isinstance(model.decoder, ConstantStateDecoder)
        like = torch.empty(0, device=process.device)
        self._process, self._groups = process, groups
        mine = range(process.rank, groups, process.world_size)
        self.states: list[States] = [model.decoder.start(rows, like) for _ in mine]

    @torch.no_grad()
    def keep(self, index: int, after: States) -> None:
        """The state after the batch of that index, for the next update."""
        for kept, now in zip(self.states[index], after, strict=True):
            # A bad update is skipped; its state must not spoil those that follow.
            kept.copy_(now.nan_to_num(0.0, 0.0, 0.0))

    def reset(self) -> None:
        """Forget everything: the text begins again."""
        for tensor in (tensor for state in self.states for tensor in state):
            tensor.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """The states of all groups, the same in all processes, by the names of a checkpoint."""
        found: dict[str, Tensor] = {}
        for place, parts in enumerate(zip(*self.states, strict=True)):
            own = torch.stack(parts)
            whole = own.new_zeros(self._groups, *own.shape[1:])
            whole[self._process.rank :: self._process.world_size] = own
            found[f"{PREFIX}{place}"] = self._process.add_up(whole)
        return found

    def load(self, stored: StoredTensors) -> None:
        """Restore what `tensors` returned; nothing if the run now has other groups of rows."""
        tensors = {name: torch.zeros_like(each) for name, each in self.tensors().items()}
        if any(stored.shapes.get(name) != tuple(each.shape) for name, each in tensors.items()):
            return
        stored.load_into(tensors)
        for place, whole in enumerate(tensors.values()):
            own = whole[self._process.rank :: self._process.world_size]
            for state, part in zip(self.states, own, strict=True):
                state[place].copy_(part)


def carried_state(
    config: Config, model: LanguageModel, process: Process, block: int
) -> CarriedState | None:
    """The state at the start of an epoch, with blocks of this length; None if batches do not
    continue each other, or the decoder has no state to carry."""
    if config.batches.break_mode != "stream" or not config.decoder.has_constant_state:
        return None
    rows = config.batches.tokens // block
    groups = config.training.tokens_per_update // (rows * block)
    return CarriedState(model, process, groups, rows)
