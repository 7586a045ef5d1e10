"""Next-word prediction: top-k and sampling with temperature, top-k and top-p.

`most_likely` and `draw` compute the log-probabilities of all words. On a GPU, computing a tail
costs less than checking whether it is needed; on a CPU, it costs little compared to the paper's
decoder (docs/results/decoding.md).

Shapes: N rows, D model width, V words, K candidate words, T tries, M columns of any matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from zipflm.model.adaptive_softmax import AdaptiveSoftmax
    from zipflm.model.outputs import FullSoftmax

_MAX_LOG_PROBS = 1 << 25
"""Maximum number of log-probabilities per chunk (128 MiB in float32)."""
_CPU_ROWS = 8
"""Rows per chunk on a CPU, where allocating large tensors costs more than computing them."""
_MIN_TEMPERATURE = 1e-10
"""Lower temperatures mean greedy decoding."""
NUM_TRIES = 8
"""Number of random numbers per draw. Most draws use only the first one."""

Mix = Callable[[Tensor, slice], Tensor]
"""Mixes the log-probabilities [N, V] of a slice of rows with another distribution."""


@torch.no_grad()
def most_likely(
    output: FullSoftmax | AdaptiveSoftmax, hidden_ND: Tensor, k: int, mix: Mix | None = None
) -> tuple[Tensor, Tensor]:
    """Return the k most likely words: log-probabilities [N, K] in descending order, and ids [N, K].
    Ties go to the smaller id."""
    chunks = [_top(log_probs_NV, k) for _, log_probs_NV in _chunks(output, hidden_ND, mix)]
    log_probs, ids = zip(*chunks, strict=True)
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
    """Sample a word for each row. Return ids [N] and their log-probabilities [N] under the model.

    Samples from p^(1/temperature), restricted to the `top_k` most likely words (0: all), then to
    the smallest set of most likely words that has at least the fraction `top_p` of the remaining
    probability. Temperature 0 selects the most likely word. Ids in `forbidden` are never drawn.
    `uniform` has `NUM_TRIES` random numbers in [0, 1) per row (default: from torch's generator).

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> hidden = model(torch.tensor([[2, 17, 250]]))[:, -1]
    >>> ids, log_probs = draw(model.output, hidden, temperature=0.8, top_p=0.95)
    >>> ids.shape, log_probs.shape
    (torch.Size([1]), torch.Size([1]))
    """
    # Apple GPUs have no float64.
    device = torch.device("cpu") if hidden_ND.device.type == "mps" else hidden_ND.device
    forbidden = None if forbidden is None else forbidden.to(device)
    if uniform is None:
        all_uniform_NT = torch.rand(len(hidden_ND), NUM_TRIES, dtype=torch.float64, device=device)
    else:
        all_uniform_NT = torch.tensor(uniform, dtype=torch.float64, device=device)
    chunks = []
    for rows, log_probs_NV in _chunks(output, hidden_ND, mix):
        log_probs_NV, uniform_NT = log_probs_NV.to(device), all_uniform_NT[rows]
        ids_N = _draw(log_probs_NV, temperature, top_k, top_p, forbidden, uniform_NT)
        chunks.append((ids_N, log_probs_NV.gather(1, ids_N.unsqueeze(1)).squeeze(1)))
    ids, log_probs = zip(*chunks, strict=True)
    return torch.cat(ids).to(hidden_ND.device), torch.cat(log_probs).to(hidden_ND.device)


def _draw(
    log_probs_NV: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    forbidden: Tensor | None,
    uniform_NT: Tensor,
) -> Tensor:
    is_greedy = temperature < _MIN_TEMPERATURE
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
    return draw_columns(scores_NV, uniform_NT[:, 0])


def _draw_sorted(scores_NK: Tensor, ids_NK: Tensor, top_p: float, uniform_N: Tensor) -> Tensor:
    """Draw one of `ids_NK`, whose scores must be in descending order."""
    if top_p < 1:
        weights_NK = scores_NK.softmax(1).double()
        cumulative_NK = weights_NK.cumsum(1)
        is_outside_NK = cumulative_NK - weights_NK >= top_p * cumulative_NK[:, -1:]
        scores_NK = scores_NK.masked_fill(is_outside_NK, -torch.inf)
    return ids_NK.gather(1, draw_columns(scores_NK, uniform_N).unsqueeze(1)).squeeze(1)


def _draw_from_nucleus(scores_NV: Tensor, top_p: float, uniform_NT: Tensor) -> Tensor:
    """Draw from all words, then retry the few rows whose word is outside the nucleus (the smallest
    set of words that reaches `top_p`). Only the last try sorts, except on a GPU, where sorting
    immediately is faster than synchronizing with the host."""
    if uniform_NT.shape[1] == 1 or scores_NV.is_cuda:
        scores_NV, ids_NV = scores_NV.sort(dim=1, descending=True, stable=True)
        return _draw_sorted(scores_NV, ids_NV, top_p, uniform_NT[:, 0])
    weights_NV = scores_NV.softmax(1)
    ids_N = draw_columns(scores_NV, uniform_NT[:, 0])
    drawn_N1 = weights_NV.gather(1, ids_N.unsqueeze(1))
    # Ties go to the smaller id.
    is_likelier_NV = weights_NV > drawn_N1
    is_likelier_NV |= (weights_NV == drawn_N1) & (
        torch.arange(scores_NV.shape[1], device=scores_NV.device) < ids_N.unsqueeze(1)
    )
    likelier_N = weights_NV.where(is_likelier_NV, 0).sum(1, dtype=torch.float64)
    is_outside_N = likelier_N >= top_p * weights_NV.sum(1, dtype=torch.float64)
    retry_M = is_outside_N.nonzero().squeeze(1)
    if len(retry_M):
        ids_N[retry_M] = _draw_from_nucleus(scores_NV[retry_M], top_p, uniform_NT[retry_M, 1:])
    return ids_N


def draw_columns(scores_NK: Tensor, uniform_N: Tensor) -> Tensor:
    """Sample a column of each row from softmax(scores), using uniform numbers in [0, 1)."""
    cumulative_NK = scores_NK.softmax(1).cumsum(1, dtype=torch.float64)
    # In (0, total], so that a cumulative sum always reaches it and words with probability 0 are
    # never drawn. NaN scores also give a valid column.
    threshold_N1 = cumulative_NK[:, -1:] * (1 - uniform_N).unsqueeze(1)
    columns_N = torch.searchsorted(cumulative_NK, threshold_N1).squeeze(1)
    return columns_N.clamp(max=scores_NK.shape[1] - 1)


def _top(values_NM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`topk` with ties in column order, which torch does not guarantee."""
    smallest_N1 = values_NM.topk(k, dim=1).values[:, -1:]
    is_above_NM, is_tied_NM = values_NM > smallest_N1, values_NM == smallest_N1
    num_tied_N1 = k - is_above_NM.sum(1, keepdim=True)
    is_kept_NM = is_above_NM | (is_tied_NM & (is_tied_NM.cumsum(1) <= num_tied_N1))
    from_end_M = torch.arange(values_NM.shape[1], 0, -1, device=values_NM.device)
    columns_NK = is_kept_NM.mul(from_end_M).topk(k, dim=1).indices  # in ascending order
    values_NK, order_NK = values_NM.gather(1, columns_NK).sort(dim=1, descending=True, stable=True)
    return values_NK, columns_NK.gather(1, order_NK)


def _chunks(
    output: FullSoftmax | AdaptiveSoftmax, hidden_ND: Tensor, mix: Mix | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and their log-probabilities [N, V]."""
    size = max(1, _MAX_LOG_PROBS // output.edges[-1])
    if hidden_ND.device.type == "cpu":
        size = min(size, _CPU_ROWS)
    for low in range(0, max(len(hidden_ND), 1), size):
        rows = slice(low, low + size)
        log_probs_NV = output.log_probs(hidden_ND[rows])
        yield rows, log_probs_NV if mix is None else mix(log_probs_NV, rows)
