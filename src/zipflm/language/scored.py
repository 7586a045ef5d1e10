"""A scored text: the log-probability of every word, where it stands in the text, and totals.

Numbers live in arrays; the objects for single words are made when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipflm.data.vocabulary import END, UNKNOWN, Vocabulary
from zipflm.evaluation.scores import ScoringProtocol
from zipflm.evaluation.scoring import predicted_ids
from zipflm.language.texts import EncodedText
from zipflm.units import bits, perplexity


@dataclass(frozen=True, slots=True)
class ScoredWord:
    """One word of a text, or the end of one of its lines."""

    word: str
    """As the vocabulary spells it; `</s>` for the end of a line."""
    logprob: float
    """Natural logarithm of p(word | everything before it)."""
    band: int
    """Of the output layer, 0 for the head; of a word in pieces, the rarest piece's."""
    count: int
    """In the training text; of a word in pieces, the rarest piece's."""
    is_unknown: bool
    """Scored as `<unk>`, or a piece of it is."""
    is_end: bool
    """The end of a line."""
    span: tuple[int, int]
    """Where it stands: `text[start:end]`; empty for an end that the text does not spell."""

    @property
    def surprisal(self) -> float:
        """In bits."""
        return -bits(self.logprob)


@dataclass(frozen=True)
class WordFacts:
    """What is known of every id, whatever text it stands in."""

    bands: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, cutoffs: tuple[int, ...], num_predicted: int | None = None
    ) -> WordFacts:
        """`cutoffs` are the first ids of the output layer's tails; it predicts `num_predicted` ids,
        all by default."""
        ids = predicted_ids(np.arange(len(vocabulary)), num_predicted or len(vocabulary))
        return cls(np.searchsorted(cutoffs, ids, side="right"), np.asarray(vocabulary.counts))


@dataclass(frozen=True, repr=False)
class ScoredText:
    """The words of a text with their scores, line ends included; totals are over all of them."""

    encoded: EncodedText
    nll: NDArray[np.float64]
    """-log p of every word, in nats; the pieces of a word added up."""
    facts: WordFacts
    protocol: ScoringProtocol
    """How the numbers came about, to be quoted with them."""

    @property
    def text(self) -> str:
        return self.encoded.text

    @property
    def logprob(self) -> float:
        """Of the whole text, in nats."""
        return -float(self.nll.sum())

    @property
    def perplexity(self) -> float:
        """Per word."""
        return perplexity(-self.logprob / len(self.nll))

    @property
    def surprisal(self) -> float:
        """Of the whole text, in bits."""
        return -bits(self.logprob)

    @cached_property
    def words(self) -> tuple[ScoredWord, ...]:
        return tuple(scored_words(self.encoded, self.nll, self.facts))

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per word; ImportError if pandas is not installed.

        The columns are the attributes of `ScoredWord`, with `start` and `end` for its span.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_frame: needs pandas; pip install pandas") from None
        names = ("word", "logprob", "surprisal", "band", "count", "is_unknown", "is_end")
        columns = {name: [getattr(word, name) for word in self.words] for name in names}
        starts, ends = zip(*self.encoded.spans, strict=True)
        return pandas.DataFrame(columns | {"start": starts, "end": ends})

    def __len__(self) -> int:
        return len(self.nll)

    def __repr__(self) -> str:
        return (
            f"ScoredText({len(self)} words, logprob={self.logprob:.4f}, "
            f"perplexity={self.perplexity:.4f})"
        )


def scored_words(
    encoded: EncodedText, nll: NDArray[np.float64], facts: WordFacts
) -> Iterator[ScoredWord]:
    """The words of a text one by one; `nll` is per word."""
    ids = np.where(encoded.ids < len(facts.counts), encoded.ids, UNKNOWN)
    columns = zip(
        encoded.words,
        (-nll).tolist(),
        np.maximum.reduceat(facts.bands[ids], encoded.starts).tolist(),
        np.minimum.reduceat(facts.counts[ids], encoded.starts).tolist(),
        encoded.is_unknown.tolist(),
        (encoded.ids[encoded.starts] == END).tolist(),
        encoded.spans,
        strict=True,
    )
    for values in columns:
        yield ScoredWord(*values)


def nll_per_word(encoded: EncodedText, nll: NDArray[np.float32]) -> NDArray[np.float64]:
    """That of a word's pieces, added up."""
    return np.add.reduceat(nll.astype(np.float64), encoded.starts)
