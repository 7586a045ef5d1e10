"""The held-out text in a few long blocks, the units of intervals.

Words are no independent observations: a hard paragraph is hard throughout, and a document has one
subject. What happens in one long block says little about the next, so blocks may stand for a
sample. Long ones are better than many: with 30 of them an interval is only 4 % wider than with
infinitely many (Student's t), while dependence that reaches past the end of a block makes it too
narrow. So the text is cut into 30 blocks of whole documents, where headings in WikiText's manner
show them, or of whole lines; and into 20, 14 or 10 if neighbouring blocks are still alike, in their
mean loss or in the difference of any two models. `estimates` allows for the likeness that is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from zipflm.analysis.frequency_bins import FloatArray, IntArray

NUMBERS = (30, 20, 14, 10)
"""How many blocks are tried, in this order."""
FEW = 10
"""With fewer blocks than this, a report warns."""
_ONE_SIDED = 1.645
"""Standard errors above zero that chance exceeds once in twenty times."""


@dataclass(frozen=True)
class TextBlocks:
    """A text cut into blocks that follow one another."""

    starts: IntArray
    """The first word of every block."""
    num_words: int
    unit: str
    """What a block consists of: `documents` or `lines`, always whole."""
    likeness: float
    """Correlation of neighbouring blocks, in the mean loss or the difference of two models,
    whichever is higher."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def are_alike(self) -> bool:
        """Whether neighbours are more alike than chance would make them."""
        return _is_alike(self.likeness, len(self))

    @property
    def of_word(self) -> IntArray:
        """The number of every word's block."""
        lengths = np.diff(np.append(self.starts, self.num_words))
        return np.repeat(np.arange(len(self)), lengths)

    def describe(self) -> str:
        """`30 blocks of whole lines, about 3,200 words each`."""
        if len(self) < 2:
            return "one block: too little text for intervals"
        length = round(self.num_words / len(self), -2 if self.num_words > 1000 * len(self) else -1)
        words = f"about {int(length) or round(self.num_words / len(self)):,} words each"
        text = f"{len(self)} blocks of whole {self.unit}, {words}"
        if self.are_alike:
            text += "; neighbours are still alike, which widens the intervals"
        return text


def cut_into_blocks(line_starts: IntArray, headings: IntArray, losses: FloatArray) -> TextBlocks:
    """Blocks for a text whose lines begin at `line_starts` and whose documents begin at `headings`,
    which may be empty; `losses` has [models, words]."""
    num_words = losses.shape[1]
    units, unit = line_starts, "lines"
    if len(headings) >= NUMBERS[-1]:
        units, unit = np.union1d([0], headings), "documents"
    for number in NUMBERS:
        starts = _even_starts(units, num_words, number)
        lengths = np.diff(np.append(starts, num_words))
        means = np.add.reduceat(losses, starts, axis=1) / lengths
        pairs = [first - second for first, second in combinations(means, 2)]
        likeness = max(_lag_one(series) for series in (means.mean(axis=0), *pairs))
        if not _is_alike(likeness, len(starts)):
            break
    return TextBlocks(starts, num_words, unit, likeness)


def document_starts(line_starts: IntArray, word_ids: IntArray, words: Sequence[str]) -> IntArray:
    """Where documents begin: at lines like `= Robert Boulter =`, whose sections have `= = = =`."""
    if "=" not in words:
        return np.zeros(0, dtype=np.int64)
    sign = words.index("=")
    ends = np.append(line_starts[1:], len(word_ids))
    # The shortest is `= word = </s>`.
    starts, ends = line_starts[ends - line_starts >= 4], ends[ends - line_starts >= 4]
    opens = (word_ids[starts] == sign) & (word_ids[starts + 1] != sign)
    closes = (word_ids[ends - 2] == sign) & (word_ids[ends - 3] != sign)
    found: IntArray = starts[opens & closes]
    return found


def _even_starts(units: IntArray, num_words: int, number: int) -> IntArray:
    """The starts of units nearest to where equal blocks would begin."""
    wished = np.arange(number) * num_words / number
    after = np.searchsorted(units, wished).clip(max=len(units) - 1)
    before = np.maximum(after - 1, 0)
    is_nearer = wished - units[before] < units[after] - wished
    starts: IntArray = np.unique(np.append(0, units[np.where(is_nearer, before, after)]))
    return starts.astype(np.int64)


def _lag_one(values: FloatArray) -> float:
    deviations = values - values.mean()
    total = float((deviations**2).sum())
    return float((deviations[1:] * deviations[:-1]).sum()) / total if total > 0 else 0.0


def _is_alike(likeness: float, number: int) -> bool:
    return likeness > _ONE_SIDED / math.sqrt(number)
