"""Loss by frequency of the word or of the previous word (section 5.2 of the paper).

Arrays have one entry per word of the scored text, also for sub-word models. The bins are those of
the paper, including EOS (end of a sentence) and UNK (unknown words), plus `0` for words that do not
occur in the training text.
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

# Largest training count of each bin; the last bin has no limit.
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
    """A group of words, and the mean loss of each model on it."""

    name: str
    types: int
    """Number of distinct words in the scored text."""
    train_tokens: int | None
    """Total occurrences of these words in the training text; None for EOS and UNK, which have no
    counts in a vocabulary."""
    tokens: int
    """Number of occurrences in the scored text."""
    loss: Mapping[str, float | None]
    """Mean nll in nats by model; None if the paper gives no value."""
    interval: Mapping[str, Ends] = field(default_factory=dict)
    """95% interval of the loss of each model, where it can be computed."""
    difference: Mapping[str, Ends] = field(default_factory=dict)
    """95% interval of the difference of each model from the reference model."""


def previous_words(word_ids: IntArray) -> IntArray:
    """Return the word before each word. The first one follows the end of a sentence.

    >>> previous_words(np.array([7, 8, 2])).tolist()
    [2, 7, 8]
    """
    return np.concatenate([np.asarray([END], dtype=word_ids.dtype), word_ids[:-1]])


def bin_indices(word_ids: IntArray, train_counts: IntArray) -> IntArray:
    """Return the index into `BIN_NAMES` for each word.

    Bin `0` contains words of the vocabulary that do not occur in the training text.
    """
    bin_of_type = _UNSEEN + np.searchsorted(np.asarray(UPPER_ENDS), train_counts, side="left")
    bin_of_type[END] = BIN_NAMES.index("EOS")
    bin_of_type[UNKNOWN] = BIN_NAMES.index("UNK")
    indices: IntArray = bin_of_type[word_ids]
    return indices


def loss_by_bin(
    word_ids: IntArray,
    train_counts: IntArray,
    nll: Mapping[str, FloatArray],
    *,
    by: IntArray | None = None,
) -> list[FrequencyBin]:
    """Return the mean loss of every model in every bin that is not empty.

    `nll` has one array per model, of the same length as `word_ids`. Words are grouped by their own
    frequency, or by that of the words in `by`, e.g. `previous_words(word_ids)`.
    """
    deciding_words = word_ids if by is None else by
    indices = bin_indices(deciding_words, train_counts)
    tokens = np.bincount(indices, minlength=len(BIN_NAMES))
    sums = {
        model: np.bincount(indices, weights=losses, minlength=len(BIN_NAMES))
        for model, losses in nll.items()
    }
    present = np.unique(deciding_words)
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
"""The bin of rare words, on which the models of the paper differ most."""
DATASETS = {"wikitext-103": "WikiText-103", "billion-word": "Billion Word"}
BIN_MODELS: dict[str, tuple[str, ...]] = {
    "wikitext-103": ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T"),
    "billion-word": ("BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T"),
}


def paper_bins(dataset: str, *, previous: bool) -> list[FrequencyBin]:
    """Return the bins of the paper's bar charts, by frequency of the word or the previous word."""
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
