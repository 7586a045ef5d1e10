"""Record whole updates as CUDA graphs: forward, backward, clipping and optimizers.

The kernels of a small model finish sooner than the host can launch them one by one. After a few
updates of the same shapes, `step.update` is recorded once and then replayed, with the same results.
Batches, learning rate and stop flag are copied to the tensors that the graph reads.
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

_WARM_UP = 3
"""Updates before recording: they compile the model and create the optimizer state."""

_MAX_MEMORY = 0.4
"""Maximum fraction of GPU memory in use. The graph needs memory of its own in addition."""

_Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    """Tensors of all batches that the graph reads."""
    stop: Tensor
    result: Tensor


class Updates:
    """Runs `step.update`, as a CUDA graph if possible: one process, compiled, with fixed shapes."""

    def __init__(self, learner: Learner, config: Config) -> None:
        self._learner = learner
        device = learner.process.device
        self._is_recordable = (
            device.type == "cuda"
            and learner.process.world_size == 1
            and learner.compilation is not None
            and config.batches.blocks.has_one_length
            # A graph needs gradients at fixed addresses; sparse ones are allocated every time.
            and not config.input.sparse
        )
        self._shapes: _Shapes = ()
        self._num_seen = 0
        self._recording: _Recording | None = None
        if self._is_recordable:
            optimizers.prepare_recording(learner.optimizers)

    @property
    def is_recorded(self) -> bool:
        return self._recording is not None

    def __call__(self, batches: Sequence[Batch], stop: bool = False) -> Tensor:
        if not self._is_recordable:
            return step.update(self._learner, batches, stop)
        inputs = [tensor for batch in batches for tensor in batch.tensors]
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes != self._shapes:
            self._shapes, self._num_seen, self._recording = shapes, 0, None
        if self._recording is None:
            self._num_seen += 1
            if self._num_seen <= _WARM_UP or not self._has_memory():
                return step.update(self._learner, batches, stop)
            self._recording = self._record(batches)
        recording = self._recording
        torch._foreach_copy_(recording.inputs, inputs)
        recording.stop.fill_(float(stop))
        recording.graph.replay()
        return recording.result.clone()

    def _has_memory(self) -> bool:
        device = self._learner.process.device
        total = torch.cuda.get_device_properties(device).total_memory
        self._is_recordable = torch.cuda.max_memory_allocated(device) < _MAX_MEMORY * total
        return self._is_recordable

    def _record(self, batches: Sequence[Batch]) -> _Recording:
        copies = [batch.map(torch.clone) for batch in batches]
        device = self._learner.process.device
        stop = torch.zeros(1, dtype=dtype_of_sums(device), device=device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the loader, can pin memory during the capture.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = step.update(self._learner, copies, stop)
        inputs = [tensor for batch in copies for tensor in batch.tensors]
        return _Recording(graph, inputs, stop, result)
