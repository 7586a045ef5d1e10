"""Loss by the frequency of a word, or of the word before it (section 5.2), and the paper's own
bins.

Works on arrays with one entry per word of the scored text. The pieces of sub-word models are added
up per word, so that every model is measured on the same words. Bins are those of the paper's four
bar charts; the end of a sentence and unknown words are kept apart, as in its data.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

import numpy as np
import numpy.typing as npt

from zipflm.data.vocabulary import END, UNKNOWN

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.floating]
BoolArray = npt.NDArray[np.bool_]
Ends = tuple[float, float]
"""The lower and the upper end of an interval."""

# Largest training count of each bin; the last has no end.
UPPER_ENDS = (0, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
BIN_NAMES = (
    "EOS",
    "UNK",
    "0",
    "1-10",
    "11-100",
    "101-1K",
    "1K-10K",
    "10K-100K",
    "100K-1M",
    "over 1M",
)
_UNSEEN = BIN_NAMES.index("0")


@dataclass(frozen=True, kw_only=True)
class FrequencyBin:
    """One group of words and each model's mean loss on them."""

    name: str
    types: int
    """Different words of this bin in the scored text."""
    train_tokens: int | None
    """How often those words occur in the training text, together; None for the end of a sentence
    and unknown words, whose number a vocabulary does not hold."""
    tokens: int
    """Occurrences in the scored text."""
    loss: Mapping[str, float | None]
    """Mean nll in nats per model; None where no word falls into the bin."""
    interval: Mapping[str, Ends] = field(default_factory=dict)
    """The 95 % interval of the loss, for models whose losses are known word by word and bins with
    words in several blocks of the text."""
    difference: Mapping[str, Ends] = field(default_factory=dict)
    """The 95 % interval of the difference to the study's reference, likewise."""


def previous_words(word_ids: IntArray) -> IntArray:
    """The word before each word; a text begins after the end of a sentence.

    >>> previous_words(np.array([7, 8, 2])).tolist()
    [2, 7, 8]
    """
    return np.concatenate([np.asarray([END], dtype=word_ids.dtype), word_ids[:-1]])


def bin_indices(word_ids: IntArray, train_counts: IntArray) -> IntArray:
    """Index into `BIN_NAMES` for each word.

    A count of ten is in `1-10`, eleven in `11-100`. The bin `0` holds words that the vocabulary
    has but the training text has not, which happens when the vocabulary comes from elsewhere.
    """
    bin_of_type = _UNSEEN + np.searchsorted(np.asarray(UPPER_ENDS), train_counts, side="left")
    bin_of_type[END] = BIN_NAMES.index("EOS")
    bin_of_type[UNKNOWN] = BIN_NAMES.index("UNK")
    chosen: IntArray = bin_of_type[word_ids]
    return chosen


def loss_by_bin(
    word_ids: IntArray,
    train_counts: IntArray,
    nll: Mapping[str, FloatArray],
    *,
    by: IntArray | None = None,
) -> list[FrequencyBin]:
    """Mean loss of every model in every bin of the words, or of the words `by` where given.

    `nll` holds one array per model, as long as `word_ids`; `by` is `previous_words(...)` for the
    second kind of chart. Bins partition the text: weighted by `tokens`, the bins' losses average
    to the total. A bin with nothing in it is left out.
    """
    groups = word_ids if by is None else by
    indices = bin_indices(groups, train_counts)
    tokens = np.bincount(indices, minlength=len(BIN_NAMES))
    sums = {
        model: np.bincount(indices, weights=losses, minlength=len(BIN_NAMES))
        for model, losses in nll.items()
    }
    present = np.unique(groups)
    bin_of_present = bin_indices(present, train_counts)
    return [
        FrequencyBin(
            name=name,
            types=int((bin_of_present == i).sum()),
            train_tokens=(
                int(train_counts[present[bin_of_present == i]].sum()) if i >= _UNSEEN else None
            ),
            tokens=int(tokens[i]),
            loss={model: float(total[i] / tokens[i]) for model, total in sums.items()},
        )
        for i, name in enumerate(BIN_NAMES)
        if tokens[i] > 0
    ]


RARE = "1-10"
"""The bin of the rarest words, on which the paper finds models furthest apart."""
DATASETS = {"wikitext-103": "WikiText-103", "billion-word": "Billion Word"}
BIN_MODELS: dict[str, tuple[str, ...]] = {
    "wikitext-103": ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T"),
    "billion-word": ("BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T"),
}


def bins_of_paper(dataset: str, *, previous: bool) -> list[FrequencyBin]:
    """The paper's bins in the shape of our own. There is no number of training tokens for the end
    of a sentence and unknown words, and no loss where no word of the test set follows such a
    word."""
    by = "previous" if previous else "word"
    path = resources.files("zipflm.studies").joinpath("paper_bins.csv")
    with path.open(encoding="utf-8") as file:
        return [
            FrequencyBin(
                name=row["bin"],
                types=int(row["types"]),
                train_tokens=int(row["train_tokens"]) if row["train_tokens"] else None,
                tokens=int(row["tokens"]),
                loss={
                    model: float(row[model]) if row[model] else None
                    for model in BIN_MODELS[dataset]
                },
            )
            for row in csv.DictReader(file)
            if (row["dataset"], row["by"]) == (dataset, by)
        ]
