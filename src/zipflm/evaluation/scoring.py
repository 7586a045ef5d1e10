"""Scoring with a model: every target once, whatever blocks and contexts it comes in.

`start_scoring` is the loop under everything that wants the nll of tokens: `score` gives it the
batches of a split, `start_documents` texts that know nothing of each other. Batches hold several
windows; only what is scored goes through the output layer, so that a window of context costs its
pass through the decoder and no more. No table of tokens by words is built: memory is bounded by the
batch, plus the nll of every token. Results travel to the host as they come, so that the device is
never waited for while it has work.

`score_sums` keeps sums only: training's pass over the valid set, in any order and on several
processes. The unit of a perplexity is always the word: the pieces of a word add up to it, so BPE
and word models compare.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.config import Blocks
from zipflm.data.batches import Batch, Batches, batch_of
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.data.windows import Windows, batched, document_windows
from zipflm.evaluation.protocol import ScoringProtocol, TokenScores, count_words
from zipflm.memory.mixing import Mixture
from zipflm.memory.specs import Memories
from zipflm.model.decoders.constant_state import RowStates
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision, autocast, dtype_of_sums
from zipflm.model.sampling import most_likely
from zipflm.runs.records import Sums


def usable_device(name: str | None) -> str:
    """`name`, or a GPU of NVIDIA's where there is one; ValueError if PyTorch cannot use it here.

    Apple's (mps) is used where it is asked for.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name}: choose cpu, cuda, cuda:N or mps") from None
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= count.get(device.type, 0):
        raise ValueError(
            f"--device {name}: there is none here that PyTorch can use; try --device cpu"
        )
    return name


T = TypeVar("T")
Ids = NDArray[np.int64]


class Share(Protocol):
    """One of several processes that score together; all make the same calls, in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def done_by_all(self, work: Callable[[], T]) -> T:
        """What this process gets by a piece of work; ValueError in all if it fails in one."""
        ...

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        ...

    def all_values(self, value: T) -> list[T]:
        """Everybody's value, in the order of the processes."""
        ...


class _Alone:
    """A process that scores everything."""

    rank = 0
    world_size = 1

    def done_by_all(self, work: Callable[[], T]) -> T:
        return work()

    def add_up(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_values(self, value: T) -> list[T]:
        return [value]


ALONE: Share = _Alone()


Watcher = Callable[[str, int, int | None], None]
"""Called with what is going on, the tokens just done, and all the tokens there are, if known.

An exception that it raises ends the scoring."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_task: ContextVar[str] = ContextVar("task", default="scoring")


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of all that is scored inside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def named(task: str) -> Iterator[None]:
    """What is scored inside, in the words that a person is shown."""
    token = _task.set(task)
    try:
        yield
    finally:
        _task.reset(token)


def tell(done: int, total: int | None) -> None:
    """So many more tokens are scored, of so many."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(_task.get(), done, total)


# Batches that are queued before the oldest result is looked at.
_PENDING = 32
# Tokens whose results processes send each other at once.
_PIECE = 1 << 24
# Log-probabilities of all words in memory at once.
_MOST_NUMBERS = 1 << 24


def score(
    model: LanguageModel,
    batches: Batches,
    *,
    device: torch.device | str,
    ends_word: NDArray[np.bool_],
    precision: Precision = "float32",
    memories: Memories | None = None,
    share: Share = ALONE,
) -> TokenScores:
    """nll of every token of a split, in the order of the text.

    `ends_word` [V] tells which ids end a word. The model is put into evaluation mode and onto the
    device. Raises ValueError if a log-probability is not finite.

    Where several processes share the work, `batches` are those of one process alone, and each
    scores every so-many-th of them: the batches are the same, and so is every nll, bit for bit on
    devices that compute alike. All get the whole result. A cache needs the batches in the order of
    the text.
    """
    ids = batches.tokens.ids
    memory = None if memories is None else memories.recall().open(ids)
    nll, positions, scored = share.done_by_all(
        lambda: start_scoring(
            model,
            ids,
            planned(batches, share),
            device=device,
            precision=precision,
            memory=memory,
            carries=batches.blocks.break_mode == "stream",
        )()
    )
    if share.world_size > 1:
        nll, positions, scored = _put_together(nll, positions, scored, device, share)
    # As many as there are, and none left out; the least of them is NaN if one is.
    if scored != len(nll) or np.isnan(nll.min()):
        raise ValueError("these batches do not hold every token once; give all ranks' batches")
    targets = predicted_ids(ids, model.config.num_predicted)
    scores = _scores(batches, targets, nll, ends_word, positions, precision)
    return scores if memories is None else scores.with_memory(memories.names)


def predicted_ids(ids: NDArray[Any], num_predicted: int) -> NDArray[Any]:
    """The ids as targets: those that the model does not predict are `<unk>`."""
    is_beyond = ids >= num_predicted
    return np.where(is_beyond, UNKNOWN, ids).astype(ids.dtype) if is_beyond.any() else ids


def planned(batches: Batches, share: Share = ALONE) -> Iterator[Windows]:
    """The windows of this process's batches; the watcher is told of each. Those of a stream, over
    which a state is carried, are all the first one's."""
    parts = 1 if batches.blocks.break_mode == "stream" else share.world_size
    total = len(batches.tokens.ids) // parts
    for index in range(share.rank, len(batches) if share.rank < parts else 0, parts):
        windows = batches.windows(0, index)
        tell(int((windows.end - windows.start).sum()), total)
        yield windows


def _put_together(
    nll: NDArray[np.float32], positions: int, scored: int, device: torch.device | str, share: Share
) -> tuple[NDArray[np.float32], int, int]:
    """The results of all processes, each of which has its own tokens and NaN for the others'."""
    counts = torch.tensor([positions, scored], device=device)
    positions, scored = share.add_up(counts).tolist()
    np.nan_to_num(nll, copy=False)  # none of ours is
    for start in range(0, len(nll), _PIECE):
        piece = torch.from_numpy(nll[start : start + _PIECE]).to(device)
        nll[start : start + _PIECE] = share.add_up(piece).cpu().numpy()
    return nll, positions, scored


Likely = list[tuple[int, float]]
"""Ids with their log-probabilities, most likely first."""


@dataclass(frozen=True)
class Document:
    """Ids that follow a `</s>`, which is not among them."""

    ids: Ids
    skip: int = 0
    """So many of them are context, not scored."""
    asked: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Places among the ids that are scored, rising, about which more is asked."""
    top: int = 0
    """How many of the most likely ids are wanted there."""
    ranks: bool = False
    """Whether the rank of the id that stands there is."""
    sources: bool = False
    """Whether the parts of its probability are, by model and memories."""


class Source(NamedTuple):
    """Where the probability of an id came from."""

    parts: list[float]
    """Of the model and of every memory; they add up to the probability."""
    nearest: list[list[int]]
    """Nearest rows of every store."""


class DocumentScores(NamedTuple):
    """What the model says of a document."""

    nll: NDArray[np.float32]
    """-log p of every id that is scored, in nats."""
    top: Sequence[Likely] = ()
    """Per place that was asked about; empty if none were wanted."""
    ranks: Sequence[int] = ()
    """The same; 1 is the most likely id."""
    sources: Sequence[Source] = ()
    """The same, of a model with memories."""


def start_documents(
    model: LanguageModel,
    documents: Sequence[Document],
    *,
    blocks: Blocks,
    batch_tokens: int,
    device: torch.device | str,
    memories: Memories | None = None,
) -> Callable[[], list[DocumentScores]]:
    """Score documents that know nothing of each other, as `start_scoring` does.

    Memories see the tokens that are context, too.
    """
    if not documents:
        return list
    stream = np.concatenate([part for each in documents for part in ([END], each.ids)])
    sizes = np.array([len(each.ids) for each in documents])
    begins = np.cumsum(sizes + 1) - sizes
    starts, ends = begins + np.array([each.skip for each in documents]), begins + sizes
    memory = None if memories is None else memories.recall().open(stream, begins[sizes > 0])
    if memory is None:
        plan = batched(document_windows(begins, starts, ends, blocks), batch_tokens)
    else:
        windows = document_windows(begins, begins, ends, blocks)
        # The documents that fit into a window, which come first, and the parts of longer ones.
        fits = int(np.count_nonzero((sizes > 0) & (sizes <= blocks.block)))
        parts_in_order = batched(windows[fits:], batch_tokens, sorts=False)
        plan = chain(batched(windows[:fits], batch_tokens), parts_in_order)
    extras = None
    if any(each.top or each.ranks or each.sources for each in documents):
        extras = _Extras(documents, begins, len(stream))
    scores = start_scoring(model, stream, plan, device=device, extras=extras, memory=memory)

    def result() -> list[DocumentScores]:
        nll = scores().nll
        parts = [nll[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return [DocumentScores(part) for part in parts] if extras is None else extras.added(parts)

    return result


class _Extras:
    """What else is asked about some places of a stream, from the vectors that predict them."""

    def __init__(self, documents: Sequence[Document], begins: Ids, length: int) -> None:
        self._documents = documents
        self._places = [begin + each.asked for each, begin in zip(documents, begins, strict=True)]
        self._wanted_top = np.zeros(length, dtype=np.int64)
        self._wanted_ranks = np.zeros(length, dtype=np.bool_)
        self._wanted_sources = np.zeros(length, dtype=np.bool_)
        for each, places in zip(documents, self._places, strict=True):
            self._wanted_top[places], self._wanted_ranks[places] = each.top, each.ranks
            self._wanted_sources[places] = each.sources
        self._top: list[tuple[Ids, Tensor, Tensor]] = []
        self._ranks: list[tuple[Ids, Tensor]] = []
        self._sources: list[tuple[Ids, Tensor, list[Tensor]]] = []

    def start(
        self,
        model: LanguageModel,
        hidden: Tensor,
        targets: Tensor,
        places: Ids,
        nll: Tensor,
        mixture: Mixture | None,
    ) -> None:
        """For a batch; the device is not waited for. `nll` is the model's own."""
        wanted = self._wanted_top[places]
        if len(rows := np.flatnonzero(wanted)):
            k = min(int(wanted.max()), model.output.edges[-1])
            (at,) = _on_device((torch.from_numpy(rows),), hidden.device)
            mix = None if mixture is None else mixture.mix(at)
            self._top.append((places[rows], *most_likely(model.output, hidden[at], k, mix)))
        rows = np.flatnonzero(self._wanted_ranks[places])
        size = max(1, _MOST_NUMBERS // model.output.edges[-1])
        for low in range(0, len(rows), size):
            some = rows[low : low + size]
            (at,) = _on_device((torch.from_numpy(some),), hidden.device)
            log_probs = model.output.log_probs(hidden[at])
            if mixture is not None:
                log_probs = mixture.log_probs(log_probs, at)
            predicted = targets[at].where(targets[at] < log_probs.shape[1], UNKNOWN)
            own = log_probs.gather(1, predicted.unsqueeze(1))
            # 1 and the number of ids that are more likely than the one that is there.
            self._ranks.append((places[some], (log_probs > own).sum(1) + 1))

        rows = np.flatnonzero(self._wanted_sources[places])
        if mixture is not None and len(rows):
            (at,) = _on_device((torch.from_numpy(rows),), hidden.device)
            words = targets[at].where(targets[at] < model.output.edges[-1], UNKNOWN)
            self._sources.append((places[rows], *mixture.sources(nll[at], words, at)))

    def added(self, nll: list[NDArray[np.float32]]) -> list[DocumentScores]:
        """The scores of the documents with all that was asked."""
        top: dict[int, Likely] = {}
        for places, values, ids in self._top:
            lists = map(list, map(zip, ids.tolist(), values.tolist()))
            top |= zip(places.tolist(), lists, strict=True)
        ranks: dict[int, int] = {}
        for places, found in self._ranks:
            ranks |= zip(places.tolist(), found.tolist(), strict=True)
        sources: dict[int, Source] = {}
        for places, parts, nearest in self._sources:
            rows = [each.tolist() for each in nearest]
            for at, (place, values) in enumerate(zip(places, parts.tolist(), strict=True)):
                sources[int(place)] = Source(values, [each[at] for each in rows])
        return [
            DocumentScores(
                part,
                [top[place][: each.top] for place in places.tolist()] if each.top else [],
                [ranks[place] for place in places.tolist()] if each.ranks else [],
                [sources[place] for place in places.tolist()] if each.sources and sources else [],
            )
            for each, places, part in zip(self._documents, self._places, nll, strict=True)
        ]


class Observer(Protocol):
    """Sees the vectors of a stream as they are computed; memories do."""

    def look(self, hidden_ND: Tensor, words_N: Tensor, places: Ids) -> Mixture: ...


class StreamScores(NamedTuple):
    """What the windows of a plan say of a stream."""

    nll: NDArray[np.float32]
    """-log p of the tokens that they score, in nats; NaN for the others."""
    positions: int
    """How many went through the model."""
    scored: int


@torch.inference_mode()
def start_scoring(
    model: LanguageModel,
    ids: NDArray[Any],
    plan: Iterable[Windows],
    *,
    device: torch.device | str,
    precision: Precision = "float32",
    extras: _Extras | None = None,
    memory: Observer | None = None,
    carries: bool = False,
) -> Callable[[], StreamScores]:
    """Score the windows of a stream; the result is there once it is called for.

    A GPU works on while the caller does something else, and only calling the result waits for it.
    With `carries` the rows of each windows continue those of the ones before, and decoders with a
    state of constant size carry it on. The model is put into evaluation mode and onto the device.
    Raises ValueError if a log-probability is not finite.
    """
    model = model.to(device).eval()
    ids = np.asarray(ids)  # a plain view of a mapped file, for which NumPy indexes without detours
    nll = np.full(len(ids), np.nan, dtype=np.float32)
    positions = scored = bad = 0
    pending: deque[_Underway] = deque()
    states: RowStates | None = None
    carries = carries and model.config.decoder.has_constant_state
    for windows in plan:
        places = scored_places(windows)
        positions += int((windows.end - windows.first).sum())
        scored += len(places)
        with autocast(precision, torch.device(device)):
            if carries and states is None:
                states = model.decoder.new_state(len(windows.first), 0)  # type: ignore[assignment]
            hidden, targets = predicting(model, batch_of(ids, windows), device, states)
            values = model.output.nll(hidden, targets)
        own, mixture = values, None
        if memory is not None:
            words = targets.where(targets < model.output.edges[-1], UNKNOWN)
            mixture = memory.look(hidden, words, places)
            values = mixture.nll(values, words)
        pending.append(_Underway(places, *_on_host(values)))
        if extras is not None:
            extras.start(model, hidden, targets, places, own, mixture)
        if len(pending) > _PENDING:
            bad += _collect(pending.popleft(), nll)

    def result() -> StreamScores:
        nonlocal bad
        while pending:
            bad += _collect(pending.popleft(), nll)
        _require_finite(bad, scored)
        return StreamScores(nll, positions, scored)

    return result


class _Underway(NamedTuple):
    """The results of a batch on their way to the host."""

    places: NDArray[np.int64]
    values: Tensor
    arrival: torch.cuda.Event | None


def _on_host(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Float32 values in host memory, and the event behind which they are there."""
    values = values.float()
    if values.device.type != "cuda":
        return values.cpu(), None
    there = torch.empty(values.shape, pin_memory=True).copy_(values, non_blocking=True)
    arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrival.record(torch.cuda.current_stream(values.device))
    return there, arrival


def predicting(
    model: LanguageModel,
    batch: Batch,
    device: torch.device | str,
    states: RowStates | None = None,
) -> tuple[Tensor, Tensor]:
    """The vectors from which the scored tokens of a batch are predicted, row by row, and these."""
    chosen = batch.scored.flatten().nonzero().squeeze(1)
    targets = batch.targets.flatten()[chosen]
    if model.config.input.spells_words:
        batch = batch.with_unique_tokens()
    inputs = batch.pin_memory() if torch.device(device).type == "cuda" else batch
    words = inputs.to(device, non_blocking=True).inputs
    targets, chosen = _on_device((targets, chosen), torch.device(device))
    return model(words, states).flatten(0, 1)[chosen], targets


def _on_device(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    if device.type != "cuda":
        return tuple(tensor.to(device) for tensor in tensors)
    # From pinned memory, because a copy from elsewhere would wait for the device.
    return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)


def scored_places(windows: Windows) -> NDArray[np.int64]:
    """Positions in the text of what a batch scores, row by row."""
    lengths = windows.end - windows.start
    ends = np.cumsum(lengths)
    places: NDArray[np.int64] = np.repeat(windows.start - (ends - lengths), lengths)
    return places + np.arange(len(places))


def _collect(underway: _Underway, nll: NDArray[np.float32]) -> int:
    """Put a batch's results into their places; how many of them are not finite."""
    if underway.arrival is not None:
        underway.arrival.synchronize()
    values = underway.values.numpy()
    nll[underway.places] = values
    return int(np.count_nonzero(~np.isfinite(values)))


def _require_finite(bad: int, scored: int) -> None:
    if bad:
        raise ValueError(
            f"the model gives {bad} of {scored} tokens no finite log-probability: its training "
            "diverged; evaluate an earlier checkpoint, or in float32 if this was another precision"
        )


def _scores(
    batches: Batches,
    targets: NDArray[Any],
    nll: NDArray[np.float32],
    ends_word: NDArray[np.bool_],
    positions: int,
    precision: str,
) -> TokenScores:
    # A view of one value where every token ends a word.
    ends = np.broadcast_to(True, len(nll)) if ends_word.all() else ends_word[targets]
    protocol = ScoringProtocol(
        unit="word" if ends_word.all() else "bpe",
        blocks=batches.blocks,
        tokens=len(nll),
        words=count_words(ends),
        unk=int(np.count_nonzero(targets == UNKNOWN)),
        eos=int(np.count_nonzero(targets == END)),
        positions=positions,
        dtype=precision,
    )
    return TokenScores(targets, nll, ends, protocol)


@torch.no_grad()
def score_sums(
    nll: Callable[[Any, Tensor, Tensor], Tensor],
    batches: Iterable[Batch],
    device: torch.device | str,
    ends_word: Tensor | None = None,
) -> Sums:
    """Score every batch with `nll(words, targets, scored)`; reads the device once, at the end.

    `ends_word` [V] tells which ids end a word; without it all do. The caller puts the model into
    evaluation mode.
    """
    dtype = dtype_of_sums(device)
    totals = torch.zeros(3, dtype=dtype, device=device)
    if ends_word is not None:
        ends_word = ends_word.to(device)
    for batch in batches:
        tell(batch.words.numel(), None)
        batch = batch.to(device, non_blocking=True)
        ends = batch.scored if ends_word is None else batch.scored & ends_word[batch.targets]
        totals[0] += nll(batch.inputs, batch.targets, batch.scored).sum(dtype=dtype)
        totals[1] += batch.scored.sum()
        totals[2] += ends.sum()
    total, tokens, words = totals.tolist()
    return Sums(total, int(tokens), int(words))
