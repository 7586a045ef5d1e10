"""The next word: the most likely ones, or one drawn at random.

Everything starts from the log-probabilities of all words. Computing a tail costs less than finding
out whether it is needed on a GPU, and little next to the decoder on a CPU
(docs/results/decoding.md).

Shapes: N rows, D model width, V words, K words that are left to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from zipflm.model.outputs import AdaptiveSoftmax, FullSoftmax

_MOST_NUMBERS = 1 << 25
"""Log-probabilities in memory at once, 128 MiB."""
_CPU_ROWS = 8
"""Rows at once on a CPU, where large tensors that come and go cost more than what is computed."""
_COLDEST = 1e-10
"""Below this temperature the most likely word has all of the probability."""
_GROUP = 256
"""Places whose probabilities are added up before one of them is chosen."""
_LEAST = torch.finfo(torch.float64).tiny
NUM_TRIES = 8
"""Random numbers that a draw may need."""


Mix = Callable[[Tensor, slice], Tensor]
"""Mixes the log-probabilities [N, V] of some of the rows with something else."""


@torch.no_grad()
def most_likely(
    output: FullSoftmax | AdaptiveSoftmax, hidden_ND: Tensor, k: int, mix: Mix | None = None
) -> tuple[Tensor, Tensor]:
    """The k most likely words: log-probabilities [N, K], falling, and ids [N, K]. Of equally likely
    words the smaller id comes first."""
    found = [_top(log_probs_NV, k) for _, log_probs_NV in _tables(output, hidden_ND, mix)]
    log_probs, ids = zip(*found, strict=True)
    return torch.cat(log_probs), torch.cat(ids)


@torch.no_grad()
def draw(
    output: FullSoftmax | AdaptiveSoftmax,
    hidden_ND: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    forbidden: Tensor | None = None,
    uniform: Sequence[Sequence[float]] | None = None,
    mix: Mix | None = None,
) -> tuple[Tensor, Tensor]:
    """A random word for each row: ids [N] and log-probabilities [N], which are the model's own
    whatever the distribution that is drawn from.

    That is p^(1/temperature), of the `top_k` most likely words if that is not 0, and of these the
    smallest set of most likely ones whose share reaches `top_p`. Temperature 0 takes the most
    likely word. `forbidden` are ids of words that never come. `uniform` are `NUM_TRIES` random
    numbers in [0, 1) for each row; torch draws them if not given.

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> hidden = model(torch.tensor([[2, 17, 250]]))[:, -1]
    >>> ids, log_probs = draw(model.output, hidden, temperature=0.8, top_p=0.95)
    >>> ids.shape, log_probs.shape
    (torch.Size([1]), torch.Size([1]))
    """
    device = hidden_ND.device
    if uniform is None:
        all_uniform_NT = torch.rand(len(hidden_ND), NUM_TRIES, dtype=torch.float64, device=device)
    else:
        all_uniform_NT = torch.tensor(uniform, dtype=torch.float64, device=device)
    drawn = []
    for rows, log_probs_NV in _tables(output, hidden_ND, mix):
        uniform_NT = all_uniform_NT[rows]
        ids_N1 = _draw(log_probs_NV, temperature, top_k, top_p, forbidden, uniform_NT).unsqueeze(1)
        drawn.append((ids_N1.squeeze(1), log_probs_NV.gather(1, ids_N1).squeeze(1)))
    ids, log_probs = zip(*drawn, strict=True)
    return torch.cat(ids), torch.cat(log_probs)


def _draw(
    log_probs_NV: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    forbidden: Tensor | None,
    uniform_NT: Tensor,
) -> Tensor:
    is_greedy = temperature < _COLDEST
    scores_NV = log_probs_NV if is_greedy or temperature == 1 else log_probs_NV / temperature
    if forbidden is not None:
        scores_NV.index_fill_(1, forbidden, -torch.inf)
    if is_greedy:
        return scores_NV.argmax(1)
    if 0 < top_k < scores_NV.shape[1]:
        scores_NK, ids_NK = scores_NV.topk(top_k, dim=1)
        return _draw_sorted(scores_NK, ids_NK, top_p, uniform_NT[:, 0])
    if top_p < 1:
        return _draw_from_nucleus(scores_NV, top_p, uniform_NT)
    return draw_places(scores_NV, uniform_NT[:, 0])


def _draw_sorted(scores_NK: Tensor, ids_NK: Tensor, top_p: float, uniform_N: Tensor) -> Tensor:
    """One of some ids, whose scores fall."""
    if top_p < 1:
        weights_NK = scores_NK.softmax(1).double()
        upto_NK = weights_NK.cumsum(1)
        is_beyond_NK = upto_NK - weights_NK >= top_p * upto_NK[:, -1:]
        scores_NK = scores_NK.masked_fill(is_beyond_NK, -torch.inf)
    return ids_NK.gather(1, draw_places(scores_NK, uniform_N).unsqueeze(1)).squeeze(1)


def _draw_from_nucleus(scores_NV: Tensor, top_p: float, uniform_NT: Tensor) -> Tensor:
    """Rows try what all words would give, and draw again where that lies outside: few do, and
    words are sorted for the last try alone."""
    if uniform_NT.shape[1] == 1:
        scores_NV, ids_NV = scores_NV.sort(dim=1, descending=True, stable=True)
        return _draw_sorted(scores_NV, ids_NV, top_p, uniform_NT[:, 0])
    weights_NV = scores_NV.softmax(1)
    ids_N = draw_places(scores_NV, uniform_NT[:, 0])
    own_N1 = weights_NV.gather(1, ids_N.unsqueeze(1))
    # Of equally likely words the smaller id comes first.
    is_before_NV = weights_NV > own_N1
    is_before_NV |= (weights_NV == own_N1) & (
        torch.arange(scores_NV.shape[1], device=scores_NV.device) < ids_N.unsqueeze(1)
    )
    before_N = weights_NV.where(is_before_NV, 0).sum(1, dtype=torch.float64)
    is_outside_N = before_N >= top_p * weights_NV.sum(1, dtype=torch.float64)
    again_M = is_outside_N.nonzero().squeeze(1)
    if len(again_M):
        ids_N[again_M] = _draw_from_nucleus(scores_NV[again_M], top_p, uniform_NT[again_M, 1:])
    return ids_N


def draw_places(scores_NK: Tensor, uniform_N: Tensor) -> Tensor:
    """A place in each row, with probabilities softmax(scores), chosen by numbers in [0, 1).

    Groups of places are added up first, and only those of one group in float64: over all places
    that would take most of the time of a step on a CPU.
    """
    weights_NK, number = scores_NK.softmax(1), scores_NK.shape[1]
    groups, end = number // _GROUP, number - number % _GROUP
    whole_NG = weights_NK[:, :end].view(len(weights_NK), groups, _GROUP).sum(2)
    rest_N1 = weights_NK[:, end:].sum(1, keepdim=True)
    sums_NG = torch.cat([whole_NG, rest_N1], dim=1).double()
    upto_NG = sums_NG.cumsum(1)
    # In (0, total]: so there is always a first sum that reaches it, and a word without any
    # probability is never chosen. NaN scores give a place, too.
    wanted_N1 = upto_NG[:, -1:] * (1 - uniform_N).unsqueeze(1)
    group_N1 = torch.searchsorted(upto_NG, wanted_N1).clamp(max=groups)
    before_N1 = (upto_NG - sums_NG).gather(1, group_N1)
    places_NM = group_N1 * _GROUP + torch.arange(_GROUP, device=scores_NK.device)
    members_NM = weights_NK.gather(1, places_NM.clamp(max=number - 1))
    within_NM = members_NM.where(places_NM < number, 0).cumsum(1, dtype=torch.float64)
    wanted_N1 = (wanted_N1 - before_N1).clamp(min=_LEAST).minimum(within_NM[:, -1:])
    place_N1 = group_N1 * _GROUP + torch.searchsorted(within_NM, wanted_N1)
    return place_N1.squeeze(1).clamp(max=number - 1)


def _top(values_NM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their places; of equal values the one with the smaller place
    comes first, which `topk` does not promise."""
    last_N1 = values_NM.topk(k, dim=1).values[:, -1:]
    is_above_NM, is_last_NM = values_NM > last_N1, values_NM == last_N1
    room_N1 = k - is_above_NM.sum(1, keepdim=True)
    is_kept_NM = is_above_NM | (is_last_NM & (is_last_NM.cumsum(1) <= room_N1))
    from_end_M = torch.arange(values_NM.shape[1], 0, -1, device=values_NM.device)
    places_NK = is_kept_NM.mul(from_end_M).topk(k, dim=1).indices  # in the order of places
    values_NK, order_NK = values_NM.gather(1, places_NK).sort(dim=1, descending=True, stable=True)
    return values_NK, places_NK.gather(1, order_NK)


def _tables(
    output: FullSoftmax | AdaptiveSoftmax, hidden_ND: Tensor, mix: Mix | None
) -> Iterator[tuple[slice, Tensor]]:
    """Some rows at a time, with log p of all words in each."""
    size = _rows_at_once(output, hidden_ND)
    for low in range(0, max(len(hidden_ND), 1), size):
        rows = slice(low, low + size)
        log_probs_NV = output.log_probs(hidden_ND[rows])
        yield rows, log_probs_NV if mix is None else mix(log_probs_NV, rows)


def _rows_at_once(output: FullSoftmax | AdaptiveSoftmax, hidden_ND: Tensor) -> int:
    rows = max(1, _MOST_NUMBERS // output.edges[-1])
    return min(rows, _CPU_ROWS) if hidden_ND.device.type == "cpu" else rows
