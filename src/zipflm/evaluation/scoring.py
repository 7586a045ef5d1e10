"""Score every token of a stream exactly once, for any block length and context.

`start_scoring` is the scoring loop: `score` runs it on the batches of a split,
`documents.start_documents` on independent texts. Only scored positions go through the output layer;
context only goes through the decoder. Memory use depends only on the batch size, apart from one
nll per token. Results are copied to the host asynchronously, so that the device does not wait for
the host.

Perplexity is always per word: the nll of the pieces of a word is summed, so that BPE and word
models can be compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.batches import Batch, Batches, batch_of
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.data.windows import Windows
from zipflm.distributed.processes import SINGLE_PROCESS, Process
from zipflm.evaluation.progress import report_progress
from zipflm.evaluation.protocol import ScoringProtocol, TokenScores, count_words
from zipflm.memory.mixing import MemoryStream, Mixture
from zipflm.memory.specs import Memories
from zipflm.model.decoders.constant_state import RowStates
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision, autocast

Ids = NDArray[np.int64]

# Maximum number of batches in flight. Beyond this, the host waits for the oldest.
_MAX_PENDING = 32


def score(
    model: LanguageModel,
    batches: Batches,
    *,
    device: torch.device | str,
    ends_word: NDArray[np.bool_],
    precision: Precision = "float32",
    memories: Memories | None = None,
    process: Process = SINGLE_PROCESS,
) -> TokenScores:
    """Return the nll of every token of a split, in the order of the text.

    `ends_word` [V] marks the ids that end a word. The model is moved to the device and switched to
    evaluation mode. Raises ValueError if a log-probability is not finite, or if the batches do not
    contain every token once.

    With several processes, pass the batches of the full split to each. Every process scores every
    `world_size`-th batch (break mode `stream`: the first process scores all of them) and gets the
    full result, bitwise equal to that of a single process on the same kind of device. A cache needs
    a single process and batches in the order of the text.
    """
    ids = batches.tokens.ids
    memory = None if memories is None else memories.stream().set_tokens(ids)
    nll, positions, scored = process.run_on_all(
        lambda: start_scoring(
            model,
            ids,
            batch_windows(batches, process),
            device=device,
            precision=precision,
            memory=memory,
            carry_state=batches.blocks.break_mode == "stream",
        )()
    )
    if process.world_size > 1:
        nll, positions, scored = _gather(nll, positions, scored, device, process)
    # The minimum is NaN if any value is.
    if scored != len(nll) or np.isnan(nll.min()):
        raise ValueError(
            "the batches do not contain every token once; pass those of the full split"
        )
    targets = predicted_ids(ids, model.config.num_predicted)
    ends = ends_word[targets]
    protocol = ScoringProtocol(
        unit="word" if ends_word.all() else "bpe",
        blocks=batches.blocks,
        tokens=len(nll),
        words=count_words(ends),
        unk=int(np.count_nonzero(targets == UNKNOWN)),
        eos=int(np.count_nonzero(targets == END)),
        positions=positions,
        dtype=precision,
        memory=() if memories is None else memories.names,
    )
    return TokenScores(targets, nll, ends, protocol)


def predicted_ids(ids: NDArray[Any], num_predicted: int) -> NDArray[Any]:
    """Replace ids that the model cannot predict with `<unk>`."""
    is_beyond = ids >= num_predicted
    return np.where(is_beyond, UNKNOWN, ids).astype(ids.dtype) if is_beyond.any() else ids


def batch_windows(batches: Batches, process: Process = SINGLE_PROCESS) -> Iterator[Windows]:
    """Yield the windows of each batch that this process scores, and report progress.

    In break mode `stream`, the first process scores all batches, because each needs the state after
    the previous one.
    """
    num_scorers = 1 if batches.blocks.break_mode == "stream" else process.world_size
    total = len(batches.tokens.ids) // num_scorers
    for index in range(
        process.rank, len(batches) if process.rank < num_scorers else 0, num_scorers
    ):
        windows = batches.windows(0, index)
        report_progress(int((windows.end - windows.start).sum()), total)
        yield windows


def _gather(
    nll: NDArray[np.float32],
    positions: int,
    scored: int,
    device: torch.device | str,
    process: Process,
) -> tuple[NDArray[np.float32], int, int]:
    """Combine the results of all processes; each has NaN for the tokens of the others."""
    counts = torch.tensor([positions, scored], device=device)
    positions, scored = process.all_reduce(counts).tolist()
    np.nan_to_num(nll, copy=False)
    return process.all_reduce(torch.from_numpy(nll).to(device)).cpu().numpy(), positions, scored


class StreamScores(NamedTuple):
    """Scores of the windows of a stream."""

    nll: NDArray[np.float32]
    """-log p in nats; NaN for tokens that were not scored."""
    positions: int
    """Number of tokens that went through the model, including context."""
    scored: int
    """Number of scored tokens."""


@torch.inference_mode()
def start_scoring(
    model: LanguageModel,
    ids: NDArray[Any],
    batches: Iterable[Windows],
    *,
    device: torch.device | str,
    precision: Precision = "float32",
    on_batch: Callable[[LanguageModel, Tensor, Tensor, Ids, Tensor, Mixture | None], None]
    | None = None,
    memory: MemoryStream | None = None,
    carry_state: bool = False,
) -> Callable[[], StreamScores]:
    """Start scoring batches of windows of a stream. Call the result to wait for the scores.

    With `carry_state`, the rows of each batch continue those of the previous one, and decoders with
    a state of constant size carry it over. The model is moved to the device and switched to
    evaluation mode. `on_batch` is called once per batch, with the model and the batch's hidden
    vectors, targets, positions, nll without memories, and mixture. The result raises ValueError if
    a log-probability is not finite.
    """
    with torch.inference_mode(False):  # so that moved weights can still be trained
        model = model.to(device).eval()
    ids = np.asarray(ids)  # a plain array is faster to index than np.memmap
    nll = np.full(len(ids), np.nan, dtype=np.float32)
    positions = scored = bad = 0
    pending: deque[_PendingBatch] = deque()
    states: RowStates | None = None
    carry_state = carry_state and model.config.decoder.has_constant_state
    for windows in batches:
        scored_at = scored_positions(windows)
        positions += int((windows.end - windows.first).sum())
        scored += len(scored_at)
        with autocast(precision, torch.device(device)):
            if carry_state and states is None:
                states = model.decoder.new_state(len(windows.first), 0)  # type: ignore[assignment]
            hidden, targets = compute_hidden(model, batch_of(ids, windows), device, states)
            values = model.output.nll(hidden, targets)
        model_nll, mixture = values, None
        if memory is not None:
            words = targets.where(targets < model.output.edges[-1], UNKNOWN)
            mixture = memory.lookup(hidden, words, scored_at)
            values = mixture.nll(values, words)
        pending.append(_PendingBatch(scored_at, *_copy_to_host(values)))
        if on_batch is not None:
            on_batch(model, hidden, targets, scored_at, model_nll, mixture)
        if len(pending) > _MAX_PENDING:
            bad += _collect(pending.popleft(), nll)

    def result() -> StreamScores:
        nonlocal bad
        while pending:
            bad += _collect(pending.popleft(), nll)
        if bad:
            raise ValueError(
                f"{bad} of {scored} tokens have no finite log-probability, perhaps because "
                "training diverged; use an earlier checkpoint, or dtype float32 if you set another"
            )
        return StreamScores(nll, positions, scored)

    return result


class _PendingBatch(NamedTuple):
    """Results that are being copied to the host."""

    positions: NDArray[np.int64]
    values: Tensor
    copied: torch.cuda.Event | None


def _copy_to_host(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start copying values to the host as float32. They are valid once the event has occurred."""
    values = values.float()
    if values.device.type != "cuda":
        return values.cpu(), None
    host = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(values.device))
    return host, copied


def compute_hidden(
    model: LanguageModel,
    batch: Batch,
    device: torch.device | str,
    states: RowStates | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden vectors that predict the scored tokens of a batch, and the ids of these
    tokens, both [scored tokens, ...] in row order."""
    chosen = batch.scored.flatten().nonzero().squeeze(1)
    targets = batch.targets.flatten()[chosen]
    if model.config.input.spells_words:
        batch = batch.with_unique_tokens()
    inputs = batch.pin_memory() if torch.device(device).type == "cuda" else batch
    words = inputs.to(device, non_blocking=True).inputs
    targets, chosen = to_device((targets, chosen), torch.device(device))
    return model(words, states).flatten(0, 1)[chosen], targets


def to_device(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Copy host tensors to the device without waiting for it, using pinned memory."""
    if device.type != "cuda":
        return tuple(tensor.to(device) for tensor in tensors)
    return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)


def scored_positions(windows: Windows) -> NDArray[np.int64]:
    """Return the positions in the stream of the tokens that a batch scores, row by row."""
    lengths = windows.end - windows.start
    ends = np.cumsum(lengths)
    shifts: NDArray[np.int64] = np.repeat(windows.start - (ends - lengths), lengths)
    return shifts + np.arange(len(shifts))


def _collect(batch: _PendingBatch, nll: NDArray[np.float32]) -> int:
    """Store the results of a batch. Return the number of non-finite ones."""
    if batch.copied is not None:
        batch.copied.synchronize()
    values = batch.values.numpy()
    nll[batch.positions] = values
    return int(np.count_nonzero(~np.isfinite(values)))
