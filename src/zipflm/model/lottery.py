"""Drawing words from distributions most of which is never computed, yet exactly.

At temperature T a word weighs p(word)^(1/T), and a group (see `lazy_log_probs`) has the sum of the
weights of its words as its mass. The mass of a tail that is still closed is only bounded; the
bounds agree at T = 1 if every word of the tail is allowed.

A group is chosen by a race: a random number from Gumbel's distribution is added to the logarithm of
every mass, and the largest sum wins, which happens with a probability proportional to the mass. So
a closed tail has to be opened only if it would win with its upper bound. The word is then drawn
within the winner.

Shapes: N rows, M rows that still need a word, G groups, R some of the rows, W words of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from zipflm.model.lazy_log_probs import Groups, LazyLogProbs


@dataclass(frozen=True)
class Words:
    """One word for each of some rows."""

    ids: Tensor
    log_probs: Tensor

    def __getitem__(self, rows: Tensor) -> Words:
        return Words(self.ids[rows], self.log_probs[rows])


class Bounds(NamedTuple):
    """Logarithms of the least and the greatest possible sum of p(word | group)^(1/T) over the
    allowed words of each group. The head's are 0: its mass is always known."""

    lower_G: Tensor
    upper_G: Tensor


def bounds(groups: Groups, temperature: float, device: torch.device) -> Bounds:
    lower, upper = [0.0], [0.0]
    for size, allowed in list(zip(groups.sizes, groups.num_allowed, strict=True))[1:]:
        # The extremes: one word has all the probability, or each has the same.
        alike = (1 - 1 / temperature) * math.log(max(allowed, 1))
        upper.append(max(0.0, alike) if allowed else -math.inf)
        # Forbidden words may have all of it, which leaves the others nothing.
        lower.append(min(0.0, alike) if allowed == size else -math.inf)
    lower_G, upper_G = torch.tensor([lower, upper], dtype=torch.float64, device=device)
    return Bounds(lower_G, upper_G)


Measure = Callable[[Tensor], Tensor]
"""The logarithm of the mass or of the number of words that are not at -inf: [R, W] to [R]."""


class Lottery:
    """N distributions from which words are drawn; what one draw computes, the next one finds."""

    def __init__(self, log_probs: LazyLogProbs, temperature: float, bounds: Bounds):
        self._log_probs, self._temperature = log_probs, temperature
        self._groups = log_probs.groups
        head_NH, num_tails = log_probs.head_NH, self._groups.number - 1
        everywhere_N = torch.arange(len(head_NH), device=head_NH.device)
        nowhere_N = torch.full_like(everywhere_N, -1)
        self._tables = [_Table(everywhere_N, head_NH)]
        self._tables += [_Table(nowhere_N.clone(), None) for _ in range(num_tails)]
        # Logarithms of the masses of all groups.
        head_N1 = self._log_mass(head_NH).unsqueeze(1)
        known_NG = torch.cat([head_N1, log_probs.tails_NC.double() / temperature], dim=1)
        self._lower_NG, self._upper_NG = known_NG + bounds.lower_G, known_NG + bounds.upper_G

    def draw(self, rows_M: Tensor, noise_MX: Tensor, limit: Words | None = None) -> Words:
        """One word for each of these rows, chosen by uniform random numbers in [0, 1): G for the
        race and one more for the word within the winner.

        With a limit only those words take part that come before the row's limit when all are put
        in the order of falling probability, equal ones in the order of ids.
        """
        gumbel_MG, uniform_M = -(-noise_MX[:, :-1].log()).log(), noise_MX[:, -1]
        drawn = Words(
            torch.zeros_like(rows_M),
            torch.zeros_like(uniform_M, dtype=self._log_probs.head_NH.dtype),
        )
        for group, at_R in enumerate(self._race(rows_M, gumbel_MG, limit)):
            if len(at_R):
                self._open(group, rows_M[at_R])
                table_RW = self._before(group, rows_M[at_R], _at(limit, at_R))
                place_R = draw_places(table_RW / self._temperature, uniform_M[at_R])
                drawn.ids[at_R] = place_R + self._groups.edges[group]
                drawn.log_probs[at_R] = table_RW.gather(1, place_R.unsqueeze(1)).squeeze(1)
        return drawn

    def in_nucleus(self, rows_M: Tensor, words: Words, top_p: float) -> Tensor:
        """Whether each row's word belongs to the smallest set of most likely words that has this
        share of the mass, which is to say: whether the words before it have less."""

        def less_than() -> tuple[Tensor, Tensor]:
            totals = self._lower_NG[rows_M].logsumexp(1), self._upper_NG[rows_M].logsumexp(1)
            return totals[0] + math.log(top_p), totals[1] + math.log(top_p)

        return self._is_less_before(rows_M, words, self._log_mass, less_than)

    def in_top(self, rows_M: Tensor, words: Words, top_k: int) -> Tensor:
        """Whether each row's word is one of the `top_k` most likely."""
        # Between two whole numbers, so that rounding decides nothing.
        limit_M = torch.full_like(self._lower_NG[rows_M, 0], math.log(top_k - 0.5))
        return self._is_less_before(rows_M, words, _log_number, lambda: (limit_M, limit_M))

    def _is_less_before(
        self,
        rows_M: Tensor,
        words: Words,
        measure: Measure,
        less_than: Callable[[], tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Whether the words before each row's word measure less than something of which a lower and
        an upper bound are known; tails are opened until that is certain."""
        number = self._groups.number
        lower_MG, upper_MG = self._measures(rows_M, words, measure)
        for _ in range(number):
            at_least_M, at_most_M = less_than()
            is_less_M = upper_MG.logsumexp(1) < at_least_M
            is_not_M = lower_MG.logsumexp(1) >= at_most_M
            # Where neither is certain yet, the largest tail is the likeliest to settle it.
            is_open_MG = torch.stack([table.is_open(rows_M) for table in self._tables], dim=1)
            largest_M = self._upper_NG[rows_M].masked_fill(is_open_MG, -torch.inf).argmax(1)
            undecided = _positions(largest_M.where(~(is_less_M | is_not_M), -1), number)
            if not any(map(len, undecided)):
                break
            for group, at_R in enumerate(undecided):
                if len(at_R):
                    self._open(group, rows_M[at_R])
                    measured_R = measure(self._before(group, rows_M[at_R], words[at_R]))
                    lower_MG[at_R, group] = upper_MG[at_R, group] = measured_R
        return torch.logical_not(is_not_M)

    def _race(self, rows_M: Tensor, gumbel_MG: Tensor, limit: Words | None) -> list[Tensor]:
        """For each group, the positions in `rows_M` of the rows in which it wins."""
        number = self._groups.number
        if limit is None:
            lower_MG, mass_MG = self._lower_NG[rows_M], self._upper_NG[rows_M]
        else:
            lower_MG, mass_MG = self._measures(rows_M, limit, self._log_mass)
        is_exact_MG = lower_MG == mass_MG
        while True:
            winner_M = (mass_MG + gumbel_MG).argmax(1)
            is_sure_M = is_exact_MG.gather(1, winner_M.unsqueeze(1)).squeeze(1)
            positions = _positions(winner_M.where(is_sure_M, winner_M + number), 2 * number)
            winners, unsure = positions[:number], positions[number:]
            if not any(map(len, unsure)):
                return winners
            for group, at_R in enumerate(unsure):
                if len(at_R):
                    self._open(group, rows_M[at_R])
                    left_RW = self._before(group, rows_M[at_R], _at(limit, at_R))
                    mass_MG[at_R, group] = self._log_mass(left_RW)
                    is_exact_MG[at_R, group] = True

    def _measures(self, rows_M: Tensor, limit: Words, measure: Measure) -> tuple[Tensor, Tensor]:
        """Bounds of what the words before the limit measure, for each group."""
        upper_MG = self._upper_NG[rows_M]
        lower_MG = torch.full_like(upper_MG, -torch.inf)
        # A closed tail that is less likely than the limit has no word before it, one that is twice
        # as likely has two at the most, and so on; the slack is for rounding.
        excess_MC = self._log_probs.tails_NC[rows_M].double() - limit.log_probs.unsqueeze(1)
        log_number_MC = (excess_MC.exp() * 1.0001).floor().log()
        if measure is _log_number:
            upper_MG[:, 1:] = log_number_MC
        else:
            upper_MG[:, 1:].masked_fill_(log_number_MC == -torch.inf, -torch.inf)
        for group, table in enumerate(self._tables):
            at_R = table.positions(rows_M)
            if len(at_R):
                measured_R = measure(self._before(group, rows_M[at_R], limit[at_R]))
                lower_MG[at_R, group] = upper_MG[at_R, group] = measured_R
        return lower_MG, upper_MG

    def _open(self, group: int, rows_R: Tensor) -> None:
        """Compute this group's words, for those of the rows where that has not been done."""
        table = self._tables[group]
        if group == 0 or not len(rows_R):
            return
        rows_R = rows_R[~table.is_open(rows_R)]
        if len(rows_R):
            log_probs_RW = self._log_probs.of_tail(group, rows_R)
            table.add(rows_R, log_probs_RW)
            mass_R = self._log_mass(log_probs_RW)
            self._lower_NG[rows_R, group] = self._upper_NG[rows_R, group] = mass_R

    def _before(self, group: int, rows_R: Tensor, limit: Words | None) -> Tensor:
        """Log-probabilities of an open group's words, -inf for those not before the limit."""
        table_RW = self._tables[group].of(rows_R)
        if limit is None:
            return table_RW
        limit_R1 = limit.log_probs.unsqueeze(1)
        ids_W = torch.arange(table_RW.shape[1], device=table_RW.device) + self._groups.edges[group]
        is_before_RW = (table_RW > limit_R1) | (
            (table_RW == limit_R1) & (ids_W < limit.ids.unsqueeze(1))
        )
        return table_RW.where(is_before_RW, -torch.inf)

    def _log_mass(self, log_probs_RW: Tensor) -> Tensor:
        return (log_probs_RW / self._temperature).logsumexp(1).double()


def _log_number(log_probs_RW: Tensor) -> Tensor:
    return (log_probs_RW > -torch.inf).sum(1).double().log()


class _Table:
    """Log-probabilities of a group's words, for the rows where it has been opened."""

    def __init__(self, place_N: Tensor, log_probs_RW: Tensor | None):
        """Row n's stand in row `place_N[n]` of the table; nowhere if that is -1."""
        self._place_N, self._log_probs_RW = place_N, log_probs_RW

    def add(self, rows_R: Tensor, log_probs_RW: Tensor) -> None:
        present = [] if self._log_probs_RW is None else [self._log_probs_RW]
        first = sum(map(len, present))
        self._place_N[rows_R] = torch.arange(first, first + len(rows_R), device=rows_R.device)
        self._log_probs_RW = torch.cat([*present, log_probs_RW])

    def of(self, rows_R: Tensor) -> Tensor:
        assert self._log_probs_RW is not None
        return self._log_probs_RW.index_select(0, self._place_N[rows_R])

    def is_open(self, rows_R: Tensor) -> Tensor:
        return self._place_N[rows_R] >= 0

    def positions(self, rows_M: Tensor) -> Tensor:
        """Where among these rows the open ones stand."""
        if self._log_probs_RW is None:
            return rows_M[:0]  # without waiting for the device
        return self.is_open(rows_M).nonzero().squeeze(1)


def draw_places(scores_NW: Tensor, uniform_N: Tensor) -> Tensor:
    """A place in each row, with probabilities softmax(scores), chosen by numbers in [0, 1)."""
    cumulative_NW = scores_NW.softmax(1).cumsum(1, dtype=torch.float64)
    # In (0, total]: so there is always a first sum that reaches it, and a word without any
    # probability never is the one.
    wanted_N1 = cumulative_NW[:, -1:] * (1 - uniform_N).unsqueeze(1)
    place_N1 = torch.searchsorted(cumulative_NW, wanted_N1)
    return place_N1.squeeze(1).clamp(
        max=scores_NW.shape[1] - 1
    )  # numbers that are none stay inside


def _at(limit: Words | None, rows: Tensor) -> Words | None:
    return None if limit is None else limit[rows]


def _positions(group_M: Tensor, number: int) -> list[Tensor]:
    """The rows of every group from 0 to `number` - 1; the device is waited for once."""
    on_host_M = group_M.cpu()
    return [(on_host_M == group).nonzero().squeeze(1).to(group_M.device) for group in range(number)]
