"""The next word, chosen from the probabilities of all words.

The same choices as `NextWord`, by the plainest way. That is what a GPU does best: computing a tail
costs it less than asking whether the tail is needed (docs/results/decoding.md).

Shapes: N rows, D model width, V words, K words that are left to choose from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zipflm.model.lottery import draw_places
from zipflm.model.next_word import Generators, checked_temperature, uniform
from zipflm.model.outputs import AdaptiveSoftmax, FullSoftmax

_MOST_NUMBERS = 1 << 27
"""Log-probabilities that are in memory at once, half a gigabyte."""


class AllWords:
    """Draws the words that follow hidden vectors; `forbidden`, one bool for each word of the
    vocabulary, is True for words that never come.

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> hidden = model(torch.tensor([[2, 17, 250]]))[:, -1]
    >>> ids, log_probs = AllWords(model.output).draw(hidden, temperature=0.8, top_p=0.95)
    >>> ids.shape, log_probs.shape
    (torch.Size([1]), torch.Size([1]))
    """

    def __init__(self, output: FullSoftmax | AdaptiveSoftmax, forbidden: Tensor | None = None):
        self._output, self._forbidden = output, forbidden
        self._rows = max(1, _MOST_NUMBERS // output.edges[-1])

    @torch.no_grad()
    def draw(
        self,
        hidden_ND: Tensor,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        generator: Generators = None,
    ) -> tuple[Tensor, Tensor]:
        """A random word for each row: ids [N] and log-probabilities [N]; see `NextWord.draw`."""
        temperature = checked_temperature(temperature, top_k, top_p)
        drawn = [
            self._draw(rows, temperature, top_k, top_p, self._of_rows(generator, place))
            for place, rows in enumerate(torch.split(hidden_ND, self._rows))
        ]
        ids, log_probs = zip(*drawn, strict=True)
        return torch.cat(ids), torch.cat(log_probs)

    def _of_rows(self, generator: Generators, place: int) -> Generators:
        """Those of the rows that are drawn for in one go, if each has its own."""
        if isinstance(generator, Sequence):
            return generator[place * self._rows : (place + 1) * self._rows]
        return generator

    def _draw(
        self,
        hidden_ND: Tensor,
        temperature: float,
        top_k: int,
        top_p: float,
        generator: Generators,
    ) -> tuple[Tensor, Tensor]:
        log_probs_NV = self._output.log_probs(hidden_ND)
        if self._forbidden is not None:
            log_probs_NV = log_probs_NV.masked_fill(self._forbidden, -torch.inf)
        if temperature == 0:
            best_N, ids_N = log_probs_NV.max(1)
            return ids_N, best_N
        scores_NK, ids_NK = log_probs_NV / temperature, None
        if 0 < top_k < scores_NK.shape[1]:
            scores_NK, ids_NK = scores_NK.topk(top_k, dim=1)
        elif top_p < 1:
            scores_NK, ids_NK = scores_NK.sort(dim=1, descending=True, stable=True)
        if top_p < 1:
            share_NK = scores_NK.softmax(1, dtype=torch.float64)
            before_NK = share_NK.cumsum(1) - share_NK
            scores_NK = scores_NK.masked_fill(before_NK >= top_p, -torch.inf)
        uniform_N = uniform(len(scores_NK), 1, generator, scores_NK.device)[:, 0]
        place_N1 = draw_places(scores_NK, uniform_N).unsqueeze(1)
        ids_N1 = place_N1 if ids_NK is None else ids_NK.gather(1, place_N1)
        return ids_N1.squeeze(1), log_probs_NV.gather(1, ids_N1).squeeze(1)
