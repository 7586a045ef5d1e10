"""Record full updates as CUDA graphs: forward, backward, clipping and optimizers.

The kernels of a small model finish sooner than the host can launch them one by one. After a few
updates with the same shapes, `step.update` is recorded and from then on replayed, with the same
results, until the shapes change. Before a replay, the batches, the learning rates and the stop flag
are copied to the tensors that the graph reads.
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
"""Number of updates with the same shapes before recording. They compile the model and create the
optimizer state."""

_MAX_MEMORY = 0.4
"""Record only if training has used less than this fraction of the GPU memory, because the graph
needs memory of its own."""

_Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    """The tensors of all batches, from which the graph reads."""
    stop: Tensor
    result: Tensor


class UpdateRunner:
    """Runs `step.update`, as a CUDA graph if possible: in a single process on a GPU, with
    compilation, blocks of one length and dense gradients."""

    def __init__(self, learner: Learner, config: Config) -> None:
        self._learner = learner
        device = learner.process.device
        self._is_recordable = (
            device.type == "cuda"
            and learner.process.world_size == 1
            and learner.compilation is not None
            and config.batches.blocks.has_one_length
            # A graph needs gradients at fixed addresses. Sparse ones are allocated at each update.
            and not config.input.sparse
        )
        self._shapes: _Shapes = ()
        self._num_equal_shapes = 0
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
            self._shapes, self._num_equal_shapes, self._recording = shapes, 0, None
        if self._recording is None:
            self._num_equal_shapes += 1
            if self._num_equal_shapes <= _WARM_UP or not self._check_memory():
                return step.update(self._learner, batches, stop)
            self._recording = self._record(batches)
        recording = self._recording
        torch._foreach_copy_(recording.inputs, inputs)
        recording.stop.fill_(float(stop))
        recording.graph.replay()
        return recording.result.clone()

    def _check_memory(self) -> bool:
        """Return True if there is enough memory to record. If not, never record in this run."""
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
        # By default, torch captures on the GPU of the first graph of the process.
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Other threads, such as the loader, can pin memory during the capture.
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            result = step.update(self._learner, copies, stop)
        inputs = [tensor for batch in copies for tensor in batch.tensors]
        return _Recording(graph, inputs, stop, result)
