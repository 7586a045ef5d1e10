"""An update on a GPU as one recorded graph: forward, backward, clipping, optimizers.

The kernels of a small model are done sooner than the host can start them one by one. After a few
updates of the same shapes the whole of `step.update` is therefore recorded once and from then on
started as a whole, with the same numbers. Batches, the learning rate and the request to stop are
copied to where the recording reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zipflm.config import Config
from zipflm.data.batches import Batch
from zipflm.model.precision import dtype_of_sums
from zipflm.training import optimizers, step
from zipflm.training.step import Learner

_REHEARSALS = 3
"""Updates of a shape before it is recorded: they compile, and make the optimizers' state."""

_LARGEST_SHARE = 0.4
"""Of the device's memory. A recording has memory of its own beside that of plain updates."""

_Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    """Of all batches, where the recording reads them."""
    stop: Tensor
    result: Tensor


class Updates:
    """`step.update`, recorded where that can be done: one process, one GPU, compiled, shapes that
    do not change."""

    def __init__(self, learner: Learner, config: Config) -> None:
        self._learner = learner
        device = learner.process.device
        self._is_recordable = (
            device.type == "cuda"
            and learner.process.world_size == 1
            and learner.compilation is not None
            and config.batches.blocks.has_one_length
            # Autograd makes sparse gradients anew; a recording needs them in their places.
            and not config.input.has_sparse_gradients
        )
        self._shapes: _Shapes = ()
        self._num_seen = 0
        self._recording: _Recording | None = None
        if self._is_recordable:
            optimizers.prepare_recording(learner.optimizers)

    @property
    def is_recorded(self) -> bool:
        """Whether the last update was started as a whole."""
        return self._recording is not None

    def __call__(self, batches: Sequence[Batch], stop: bool = False) -> Tensor:
        """An update; see `step.update`."""
        if not self._is_recordable:
            return step.update(self._learner, batches, stop)
        inputs = [tensor for batch in batches for tensor in batch.tensors]
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes != self._shapes:
            self._shapes, self._num_seen, self._recording = shapes, 0, None
        if self._recording is None:
            self._num_seen += 1
            if self._num_seen <= _REHEARSALS or not self._has_room():
                return step.update(self._learner, batches, stop)
            self._recording = self._record(batches)
        recording = self._recording
        torch._foreach_copy_(recording.inputs, inputs)
        recording.stop.fill_(float(stop))
        recording.graph.replay()
        return recording.result.clone()

    def _has_room(self) -> bool:
        device = self._learner.process.device
        total = torch.cuda.get_device_properties(device).total_memory
        self._is_recordable = torch.cuda.max_memory_allocated(device) < _LARGEST_SHARE * total
        return self._is_recordable

    def _record(self, batches: Sequence[Batch]) -> _Recording:
        copies = [batch.map(torch.clone) for batch in batches]
        device = self._learner.process.device
        stop = torch.zeros(1, dtype=dtype_of_sums(device), device=device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        # What the loader's thread does meanwhile, pinning memory, is no part of it.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = step.update(self._learner, copies, stop)
        inputs = [tensor for batch in copies for tensor in batch.tensors]
        return _Recording(graph, inputs, stop, result)
