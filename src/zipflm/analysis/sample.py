"""The scored text as a sample of blocks: mean losses of any of its words, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from zipflm.analysis.estimates import Estimate, mean_of
from zipflm.analysis.frequency_bins import (
    BIN_NAMES,
    BoolArray,
    Ends,
    FloatArray,
    FrequencyBin,
    IntArray,
    bin_indices,
)
from zipflm.analysis.text_blocks import TextBlocks, cut_into_blocks, document_starts
from zipflm.data.vocabulary import Vocabulary


class Sample:
    """The scored text as a sample of blocks, and what is estimated from it."""

    def __init__(
        self,
        word_ids: IntArray,
        line_starts: IntArray,
        vocabulary: Vocabulary,
        nll: Mapping[str, FloatArray],
        reference: str,
    ) -> None:
        """`nll` has [seeds, words] for every model; `reference` is the one that the others are
        compared to, bin by bin."""
        self._ids, self._counts = word_ids, vocabulary.counts
        self._nll, self._reference = nll, reference
        starts = np.asarray(line_starts, dtype=np.int64)
        means = [losses.mean(axis=0) for losses in nll.values()] or [np.zeros(len(self._ids))]
        headings = document_starts(starts, self._ids, vocabulary.words)
        self.blocks: TextBlocks = cut_into_blocks(starts, headings, np.stack(means))

    def estimates(self, chosen: BoolArray) -> dict[str, Estimate]:
        """The mean loss of every model on some of the words."""
        places = self.blocks.of_word[chosen]
        number = len(self.blocks)
        counts = np.bincount(places, minlength=number).astype(np.float64)
        return {
            label: mean_of(
                np.array([np.bincount(places, own[chosen], number) for own in losses], np.float64),
                counts,
            )
            for label, losses in self._nll.items()
        }

    def with_intervals(
        self, bins: Sequence[FrequencyBin], groups: IntArray
    ) -> tuple[FrequencyBin, ...]:
        """Bins of the words in `groups`, with the intervals of their losses."""
        indices = bin_indices(groups, self._counts)
        found = []
        for b in bins:
            own = self.estimates(indices == BIN_NAMES.index(b.name))
            against = {
                label: estimate - own[self._reference]
                for label, estimate in own.items()
                if label != self._reference
            }
            found.append(replace(b, interval=_ends(own), difference=_ends(against)))
        return tuple(found)


def _ends(estimates: Mapping[str, Estimate]) -> dict[str, Ends]:
    intervals = {label: estimate.interval for label, estimate in estimates.items()}
    return {label: (i.low, i.high) for label, i in intervals.items() if i is not None}
