"""The next word, exactly, without computing the probabilities of all words.

The head of an adaptive softmax says how likely each tail is as a whole, and no word is more likely
than its tail. So the most likely words need no tail less likely than the last of them, a draw needs
a tail only if it would fall there, and whether a drawn word belongs to the most likely ones can
usually be told from the words of the head before it. A full softmax is the case without tails.

Shapes: N rows, D model width, V words, H words of the head, K words asked for, M columns, R some of
the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from zipflm.model.lazy_log_probs import Groups, LazyLogProbs, Openings
from zipflm.model.lottery import Bounds, Lottery, Words, bounds, draw_places
from zipflm.model.outputs import AdaptiveSoftmax, FullSoftmax

Generators = torch.Generator | Sequence[torch.Generator] | None
"""Whence random numbers come: one generator for all rows, one for each, or torch's own."""

_COLDEST, _HOTTEST = 1e-10, 1e10
"""Temperatures beyond which rounding alone tells words apart: below, the most likely one has all of
the probability, above, all have the same. Further out, numbers would leave the range of float32."""


class NextWord:
    """Chooses the words that follow hidden vectors. Made once for a model in evaluation mode, on
    the device where it stays.

    >>> from zipflm import LanguageModel, preset
    >>> model = LanguageModel(preset("tiny", "ADP-T")).eval()
    >>> next_word = NextWord(model.output)
    >>> hidden = model(torch.tensor([[2, 17, 250]]))[:, -1]
    >>> log_probs, ids = next_word.most_likely(hidden, k=5)
    >>> log_probs.shape, ids.shape
    (torch.Size([1, 5]), torch.Size([1, 5]))
    >>> ids, log_probs = next_word.draw(hidden, temperature=0.8, top_p=0.95)
    """

    def __init__(self, output: FullSoftmax | AdaptiveSoftmax, forbidden: Tensor | None = None):
        """`forbidden`, one bool for each word of the vocabulary, is True for words that never come;
        the others keep their log-probabilities."""
        self._output = output
        vocab_size, device = output.edges[-1], _device_of(output)
        self._groups = Groups(output.edges, _checked(forbidden, vocab_size, device))
        self._num_allowed = sum(self._groups.num_allowed)
        if self._num_allowed == 0:
            raise ValueError(f"forbidden: all {vocab_size} words are; leave at least one")
        self._bounds: dict[float, Bounds] = {}
        self.openings: Openings = Openings()
        """How often tails were needed, in all calls so far."""

    @torch.no_grad()
    def most_likely(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most likely words: log-probabilities [N, K], falling, and ids [N, K]; of equally
        likely words the smaller id comes first."""
        if not 1 <= k <= self._num_allowed:
            raise ValueError(
                f"k={k}: there are {self._num_allowed} words to choose from; give 1 to that many"
            )
        log_probs = self._begin(hidden_ND)
        best_NK, ids_NK = _top(log_probs.head_NH, k)
        missing = (0, k - best_NK.shape[1])
        best_NK, ids_NK = F.pad(best_NK, missing, value=-torch.inf), F.pad(ids_NK, missing)
        # In the order of ids, so that whatever was found before comes first among equals.
        for group in range(1, self._groups.number):
            # No word is more likely than its tail, nor, among equals, comes before a smaller id.
            is_needed_N = log_probs.tails_NC[:, group - 1] > best_NK[:, -1]
            rows_R = is_needed_N.nonzero().squeeze(1)
            if not len(rows_R) or not self._groups.num_allowed[group]:
                continue
            tail_RK, place_RK = _top(log_probs.of_tail(group, rows_R), k)
            both_RM = torch.cat([best_NK[rows_R], tail_RK], dim=1)
            both_ids_RM = torch.cat([ids_NK[rows_R], place_RK + self._groups.edges[group]], dim=1)
            best_NK[rows_R], at_RK = _top(both_RM, k)
            ids_NK[rows_R] = both_ids_RM.gather(1, at_RK)
        self._end(log_probs)
        return best_NK, ids_NK

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
        """A random word for each row: ids [N] and log-probabilities [N], which are the model's own
        whatever the distribution that is drawn from.

        That is p^(1/temperature), of the `top_k` most likely words if that is not 0, and of these
        the smallest set of most likely ones whose share reaches `top_p`. Temperature 0 takes the
        most likely word. A row's word depends on the generator's state and on no other row. With a
        generator for each row it is the word that the row would get alone.
        """
        temperature = checked_temperature(temperature, top_k, top_p)
        if temperature == 0:
            log_probs_N1, ids_N1 = self.most_likely(hidden_ND, 1)
            return ids_N1.squeeze(1), log_probs_N1.squeeze(1)
        is_limited = 0 < top_k < self._num_allowed
        if is_limited and top_p < 1:
            return self._draw_of_top_and_nucleus(hidden_ND, temperature, top_k, top_p, generator)
        log_probs = self._begin(hidden_ND)
        lottery = Lottery(log_probs, temperature, self._bounds_at(temperature, hidden_ND.device))
        rows_M = torch.arange(len(hidden_ND), device=hidden_ND.device)
        words = Words(torch.zeros_like(rows_M), log_probs.head_NH.new_zeros(len(rows_M)))
        limit = None
        while len(rows_M):
            noise_MX = _noise(hidden_ND, rows_M, self._groups.number + 1, generator)
            drawn = lottery.draw(rows_M, noise_MX, limit)
            words.ids[rows_M], words.log_probs[rows_M] = drawn.ids, drawn.log_probs
            if is_limited:
                is_valid_M = lottery.in_top(rows_M, drawn, top_k)
            elif top_p < 1:
                is_valid_M = lottery.in_nucleus(rows_M, drawn, top_p)
            else:
                break
            # A word drawn from a larger set is a draw from the smaller one if it belongs to it. If
            # it does not, nothing behind it does either: only what comes before is drawn from next.
            again_R = (~is_valid_M).nonzero().squeeze(1)
            rows_M, limit = rows_M[again_R], drawn[again_R]
        self._end(log_probs)
        return words.ids, words.log_probs

    def _draw_of_top_and_nucleus(
        self,
        hidden_ND: Tensor,
        temperature: float,
        top_k: int,
        top_p: float,
        generator: Generators,
    ) -> tuple[Tensor, Tensor]:
        # The nucleus is a share of the mass of these words, so they are all needed.
        log_probs_NK, ids_NK = self.most_likely(hidden_ND, top_k)
        scores_NK = log_probs_NK / temperature
        share_NK = scores_NK.softmax(1, dtype=torch.float64)
        before_NK = F.pad(share_NK.cumsum(1)[:, :-1], (1, 0))
        scores_NK = scores_NK.masked_fill(before_NK >= top_p, -torch.inf)
        uniform_N = uniform(len(hidden_ND), 1, generator, hidden_ND.device)[:, 0]
        place_N1 = draw_places(scores_NK, uniform_N).unsqueeze(1)
        return ids_NK.gather(1, place_N1).squeeze(1), log_probs_NK.gather(1, place_N1).squeeze(1)

    def _begin(self, hidden_ND: Tensor) -> LazyLogProbs:
        if self._output.training and _has_dropout(self._output):
            raise ValueError("output: it is in training mode, with dropout; call model.eval()")
        if hidden_ND.dim() != 2 or hidden_ND.shape[1] != self._output.in_dim:
            raise ValueError(
                f"hidden.shape={tuple(hidden_ND.shape)}: give rows of width {self._output.in_dim}, "
                "one for each word that is to be chosen"
            )
        return LazyLogProbs(self._output, self._groups, hidden_ND)

    def _end(self, log_probs: LazyLogProbs) -> None:
        self.openings.calls += 1
        self.openings.calls_with_tails += log_probs.num_opened > 0
        self.openings.rows += len(log_probs.head_NH)
        self.openings.tails += log_probs.num_opened

    def _bounds_at(self, temperature: float, device: torch.device) -> Bounds:
        if temperature not in self._bounds:
            self._bounds = {temperature: bounds(self._groups, temperature, device)}
        return self._bounds[temperature]


def _top(values_NM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, or all if there are fewer, and their places; of equal values the
    one with the smaller place comes first, which `topk` does not promise."""
    width = values_NM.shape[1]
    if k >= width:
        values_NM, places_NM = values_NM.sort(dim=1, descending=True, stable=True)
        return values_NM, places_NM
    last_N1 = values_NM.topk(k, dim=1).values[:, -1:]
    is_above_NM, is_last_NM = values_NM > last_N1, values_NM == last_N1
    room_N1 = k - is_above_NM.sum(1, keepdim=True)
    is_kept_NM = is_above_NM | (is_last_NM & (is_last_NM.cumsum(1) <= room_N1))
    from_end_M = torch.arange(width, 0, -1, device=values_NM.device)
    places_NK = is_kept_NM.mul(from_end_M).topk(k, dim=1).indices  # in the order of places
    values_NK, order_NK = values_NM.gather(1, places_NK).sort(dim=1, descending=True, stable=True)
    return values_NK, places_NK.gather(1, order_NK)


def _noise(hidden_ND: Tensor, rows_M: Tensor, number: int, generator: Generators) -> Tensor:
    """Random numbers in [0, 1) for these rows."""
    if isinstance(generator, Sequence):
        own = [generator[row] for row in rows_M.tolist()]
        return uniform(len(own), number, own, hidden_ND.device)
    # For all rows, so that none depends on how often another is drawn again.
    return uniform(len(hidden_ND), number, generator, hidden_ND.device)[rows_M]


def uniform(rows: int, number: int, generator: Generators, device: torch.device) -> Tensor:
    """So many random numbers in [0, 1) for each row, in float64."""
    if isinstance(generator, Sequence):
        # Each on its own device: a CPU's numbers are the same whatever the model runs on.
        drawn = [
            torch.rand(1, number, generator=each, device=each.device, dtype=torch.float64)
            for each in generator
        ]
        return torch.cat(drawn).to(device)
    return torch.rand(rows, number, generator=generator, device=device, dtype=torch.float64)


def _has_dropout(output: FullSoftmax | AdaptiveSoftmax) -> bool:
    return isinstance(output, AdaptiveSoftmax) and any((output.input_dropout, *output.tail_rates))


def _device_of(output: FullSoftmax | AdaptiveSoftmax) -> torch.device:
    return output.weight.device if isinstance(output, FullSoftmax) else output.clusters.device


def _checked(forbidden: Tensor | None, vocab_size: int, device: torch.device) -> Tensor | None:
    if forbidden is None:
        return None
    if forbidden.shape != (vocab_size,) or forbidden.dtype != torch.bool:
        raise ValueError(
            f"forbidden: {forbidden.dtype} of shape {tuple(forbidden.shape)}; give one torch.bool "
            f"for each of the {vocab_size} words"
        )
    return forbidden.to(device)


def checked_temperature(temperature: float, top_k: int, top_p: float) -> float:
    """The temperature to compute with; ValueError for choices that make no sense."""
    if not 0 <= temperature < math.inf:
        raise ValueError(
            f"temperature={temperature}: give 0 for the most likely word, 1 for the model's own "
            "distribution, or another finite positive number"
        )
    if top_k < 0:
        raise ValueError(f"top_k={top_k}: give a number of words, or 0 for all")
    if not 0 < top_p <= 1:
        raise ValueError(
            f"top_p={top_p}: give a share of the probability above 0 and up to 1, which is all"
        )
    return 0.0 if temperature < _COLDEST else min(temperature, _HOTTEST)
