"""Scoring batches with a model: every target once, whatever blocks and contexts they come in.

Batches hold several windows; only what is scored goes through the output layer, so that a window
of context costs its pass through the decoder and no more. No table of tokens by words is built:
memory is bounded by the batch, plus the nll of every token (and a byte for sub-words) in `score`.
Nothing waits for the device but a collection of results every few batches.

`score` keeps the nll of every token, `score_windows` that of any part of a stream. `score_sums`
keeps sums only: training's pass over the valid set, in any order and on several processes. The unit
of a perplexity is always the word: the pieces of a word add up to it, so BPE and word models
compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipflm.data.batches import Batch, Batches, Windows, batch_of
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.evaluation.scores import ScoringProtocol, TokenScores, count_words
from zipflm.evaluation.watching import tell
from zipflm.model.language_model import LanguageModel
from zipflm.model.precision import Precision, autocast, dtype_of_sums
from zipflm.runs.records import Sums

# Batches whose results wait on the device: collecting them stalls it, so seldom.
_PENDING = 32


def score(
    model: LanguageModel,
    batches: Batches,
    *,
    device: torch.device | str,
    ends_word: NDArray[np.bool_],
    precision: Precision = "float32",
) -> TokenScores:
    """nll of every token of a split, in the order of the text.

    `ends_word` [V] tells which ids end a word. The model is put into evaluation mode and onto the
    device. Raises ValueError if a log-probability is not finite.
    """
    plan = (batches.windows(0, index) for index in range(len(batches)))
    ids = batches.tokens.ids
    nll, positions, scored = score_windows(model, ids, plan, device=device, precision=precision)
    # As many as there are, and none left out; the least of them is NaN if one is.
    if scored != len(nll) or np.isnan(nll.min()):
        raise ValueError("these batches do not hold every token once; give all ranks' batches")
    return _scores(batches, nll, ends_word, positions, precision)


@torch.inference_mode()
def score_windows(
    model: LanguageModel,
    ids: NDArray[Any],
    plan: Iterable[Windows],
    *,
    device: torch.device | str,
    precision: Precision = "float32",
) -> tuple[NDArray[np.float32], int, int]:
    """nll of the tokens of a stream that windows score, NaN for the others; how many positions
    went through the model, and how many were scored.

    The model is put into evaluation mode and onto the device. Raises ValueError if a
    log-probability is not finite.
    """
    model = model.to(device).eval()
    ids = np.asarray(ids)  # a plain view of a mapped file, for which NumPy indexes without detours
    nll = np.full(len(ids), np.nan, dtype=np.float32)
    positions = scored = bad = 0
    pending: list[tuple[NDArray[np.int64], Tensor]] = []
    for windows in plan:
        places = _scored_places(windows)
        tell(len(places), len(ids))
        positions += int((windows.end - windows.first).sum())
        scored += len(places)
        with autocast(precision, torch.device(device)):
            pending.append((places, _scored_nll(model, batch_of(ids, windows), device)))
        if len(pending) == _PENDING:
            bad += _collect(pending, nll)
    bad += _collect(pending, nll)
    _require_finite(bad, scored)
    return nll, positions, scored


def _scored_nll(model: LanguageModel, batch: Batch, device: torch.device | str) -> Tensor:
    """nll of the scored tokens of a batch, row by row, still on the device."""
    chosen = batch.scored.flatten().nonzero().squeeze(1)
    targets = batch.targets.flatten()[chosen]
    words, targets, chosen = _on_device((batch.words, targets, chosen), torch.device(device))
    hidden = model(words).flatten(0, 1)[chosen]
    return model.output.nll(hidden, targets)


def _on_device(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    if device.type != "cuda":
        return tuple(tensor.to(device) for tensor in tensors)
    # From pinned memory, because a copy from elsewhere would wait for the device.
    return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)


def _scored_places(windows: Windows) -> NDArray[np.int64]:
    """Positions in the text of what a batch scores, row by row."""
    lengths = windows.end - windows.start
    ends = np.cumsum(lengths)
    places: NDArray[np.int64] = np.repeat(windows.start - (ends - lengths), lengths)
    return places + np.arange(len(places))


def _collect(pending: list[tuple[NDArray[np.int64], Tensor]], nll: NDArray[np.float32]) -> int:
    """Put results into their places; how many of them are not finite."""
    if not pending:
        return 0
    places = np.concatenate([place for place, _ in pending])
    values = torch.cat([values for _, values in pending]).float().cpu().numpy()
    nll[places] = values
    pending.clear()
    return int(np.count_nonzero(~np.isfinite(values)))


def _require_finite(bad: int, scored: int) -> None:
    if bad:
        raise ValueError(
            f"the model gives {bad} of {scored} tokens no finite log-probability: its training "
            "diverged; evaluate an earlier checkpoint, or in float32 if this was another precision"
        )


def _scores(
    batches: Batches,
    nll: NDArray[np.float32],
    ends_word: NDArray[np.bool_],
    positions: int,
    precision: str,
) -> TokenScores:
    targets = batches.tokens.ids
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
        precision=precision,
    )
    return TokenScores(targets, nll, ends, protocol)


@torch.no_grad()
def score_sums(
    nll: Callable[[Tensor, Tensor, Tensor], Tensor],
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
        totals[0] += nll(batch.words, batch.targets, batch.scored).sum(dtype=dtype)
        totals[1] += batch.scored.sum()
        totals[2] += ends.sum()
    total, tokens, words = totals.tolist()
    return Sums(total, int(tokens), int(words))
