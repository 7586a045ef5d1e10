"""Log-probabilities of which the head's are computed at once, and a tail's only when asked for.

A group is a set of words with a softmax of its own: the head is group 0, and every tail is one. The
head says how likely a tail is as a whole, which bounds every word in it: most of the time that is
all one needs to know.

Shapes: N rows, D model width, V words, H words of the head, C tails, R some of the rows, W words of
a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from zipflm.model.outputs import AdaptiveSoftmax, FullSoftmax


@dataclass
class Openings:
    """How often more than the head has been computed."""

    calls: int = 0
    calls_with_tails: int = 0
    """Calls in which some row needed some tail."""
    rows: int = 0
    tails: int = 0
    """Tails that were opened, added up over rows."""


class Groups:
    """The groups of an output layer, and which of their words must not come next."""

    def __init__(self, edges: tuple[int, ...], forbidden_V: Tensor | None = None):
        self.edges = edges
        self.sizes: list[int] = [end - first for first, end in pairwise(edges)]
        self.num_allowed: list[int] = list(self.sizes)
        self._forbidden: list[Tensor | None] = [None] * self.number
        for group, (first, end) in enumerate(pairwise(edges)):
            if forbidden_V is not None and (number := int(forbidden_V[first:end].sum())):
                self.num_allowed[group] -= number
                self._forbidden[group] = forbidden_V[first:end]

    @property
    def number(self) -> int:
        return len(self.sizes)

    def without_forbidden(self, group: int, log_probs_RW: Tensor) -> Tensor:
        """-inf for the words of this group that are forbidden."""
        mask_W = self._forbidden[group]
        return log_probs_RW if mask_W is None else log_probs_RW.masked_fill(mask_W, -torch.inf)


class LazyLogProbs:
    """log p of the words after N hidden vectors, -inf for those that are forbidden."""

    def __init__(self, output: FullSoftmax | AdaptiveSoftmax, groups: Groups, hidden_ND: Tensor):
        self.groups = groups
        self.num_opened: int = 0
        """Tails that were asked for, added up over rows."""
        self._output, self._hidden_ND = output, hidden_ND
        log_probs = output.head_log_probs(hidden_ND)
        self.head_NH: Tensor = groups.without_forbidden(0, log_probs[:, : groups.sizes[0]])
        self.tails_NC: Tensor = log_probs[:, groups.sizes[0] :]
        """log p of each tail as a whole, its forbidden words included."""

    def of_tail(self, group: int, rows_R: Tensor) -> Tensor:
        """log p of all words of a tail, [R, W], after these of the hidden vectors."""
        assert isinstance(self._output, AdaptiveSoftmax)
        self.num_opened += len(rows_R)
        within_RW = self._output.tail_log_probs(self._hidden_ND.index_select(0, rows_R), group)
        tail_R1 = self.tails_NC[:, group - 1].index_select(0, rows_R).unsqueeze(1)
        return self.groups.without_forbidden(group, tail_R1 + within_RW)
