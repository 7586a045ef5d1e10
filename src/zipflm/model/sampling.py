"""The next word: the most likely ones, or one drawn at random.

Everything starts from the log-probabilities of all words. Computing a tail costs less than finding
out whether it is needed on a GPU, and little next to the decoder on a CPU
(docs/results/decoding.md).

Shapes: N rows, D model width, V words, K words that are left to choose from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from zipflm.model.outputs import AdaptiveSoftmax, FullSoftmax

_MOST_NUMBERS = 1 << 25
"""Log-probabilities in memory at once, 128 MiB."""
_COLDEST = 1e-10
"""Below this temperature the most likely word has all of the probability."""
_NUCLEUS = 4096
"""Words to look for a nucleus in before all of them are sorted."""


@torch.no_grad()
def most_likely(
    output: FullSoftmax | AdaptiveSoftmax, hidden_ND: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k most likely words: log-probabilities [N, K], falling, and ids [N, K]. Of equally likely
    words the smaller id comes first."""
    parts = torch.split(hidden_ND, _rows_at_once(output))
    found = [most_likely_in(output.log_probs(rows_ND), k) for rows_ND in parts]
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
    uniform: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """A random word for each row: ids [N] and log-probabilities [N], which are the model's own
    whatever the distribution that is drawn from.

    That is p^(1/temperature), of the `top_k` most likely words if that is not 0, and of these the
    smallest set of most likely ones whose share reaches `top_p`. Temperature 0 takes the most
    likely word. `forbidden`, one bool for each word of the vocabulary, is True for words that never
    come. `uniform` are random numbers in [0, 1), one per row; torch draws them if not given.

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> hidden = model(torch.tensor([[2, 17, 250]]))[:, -1]
    >>> ids, log_probs = draw(model.output, hidden, temperature=0.8, top_p=0.95)
    >>> ids.shape, log_probs.shape
    (torch.Size([1]), torch.Size([1]))
    """
    if uniform is None:
        all_uniform_N = torch.rand(len(hidden_ND), dtype=torch.float64, device=hidden_ND.device)
    else:
        all_uniform_N = torch.tensor(uniform, dtype=torch.float64, device=hidden_ND.device)
    parts = (torch.split(x, _rows_at_once(output)) for x in (hidden_ND, all_uniform_N))
    drawn = []
    for rows_ND, uniform_N in zip(*parts, strict=True):
        log_probs_NV = output.log_probs(rows_ND)
        ids_N1 = _draw(log_probs_NV, temperature, top_k, top_p, forbidden, uniform_N).unsqueeze(1)
        drawn.append((ids_N1.squeeze(1), log_probs_NV.gather(1, ids_N1).squeeze(1)))
    ids, log_probs = zip(*drawn, strict=True)
    return torch.cat(ids), torch.cat(log_probs)


def _draw(
    log_probs_NV: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    forbidden: Tensor | None,
    uniform_N: Tensor,
) -> Tensor:
    is_greedy = temperature < _COLDEST
    scores_NK = log_probs_NV if is_greedy else log_probs_NV / temperature
    if forbidden is not None:
        scores_NK = scores_NK.masked_fill(forbidden, -torch.inf)
    if is_greedy:
        return scores_NK.argmax(1)
    ids_NK = None
    if 0 < top_k < scores_NK.shape[1]:
        scores_NK, ids_NK = scores_NK.topk(top_k, dim=1)
    if top_p < 1:
        scores_NK, order_NK = _nucleus(scores_NK, top_p)
        ids_NK = order_NK if ids_NK is None else ids_NK.gather(1, order_NK)
    places_N = draw_places(scores_NK, uniform_N)
    return places_N if ids_NK is None else ids_NK.gather(1, places_N.unsqueeze(1)).squeeze(1)


def _nucleus(scores_NV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Scores in falling order, -inf outside the smallest set that has a share of `top_p`, and their
    places."""
    total_N1 = scores_NV.logsumexp(1, keepdim=True)
    scores_NK, places_NK = scores_NV.topk(min(_NUCLEUS, scores_NV.shape[1]), dim=1)
    if bool(((scores_NK - total_N1).double().exp().sum(1) < top_p).any()):
        scores_NK, places_NK = scores_NV.sort(dim=1, descending=True)
    share_NK = (scores_NK - total_N1).double().exp()
    before_NK = share_NK.cumsum(1) - share_NK
    return scores_NK.masked_fill(before_NK >= top_p, -torch.inf), places_NK


def draw_places(scores_NK: Tensor, uniform_N: Tensor) -> Tensor:
    """A place in each row, with probabilities softmax(scores), chosen by numbers in [0, 1)."""
    cumulative_NK = scores_NK.softmax(1).cumsum(1, dtype=torch.float64)
    # In (0, total]: so there is always a first sum that reaches it, and a word without any
    # probability is never chosen.
    wanted_N1 = cumulative_NK[:, -1:] * (1 - uniform_N).unsqueeze(1)
    places_N = torch.searchsorted(cumulative_NK, wanted_N1).squeeze(1)
    return places_N.clamp(max=scores_NK.shape[1] - 1)  # NaN scores give a place, too


def most_likely_in(values_NM: Tensor, k: int) -> tuple[Tensor, Tensor]:
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


def _rows_at_once(output: FullSoftmax | AdaptiveSoftmax) -> int:
    return max(1, _MOST_NUMBERS // output.edges[-1])
