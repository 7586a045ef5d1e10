"""Loss by frequency of the word or of the previous word (section 5.2 of the paper).

Arrays have one entry per word of the scored text, even for subword models. The bins are those of
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
UNSEEN = BIN_NAMES.index("0")
RARE = "1-10"
"""The bin of rare words, on which the models of the paper differ most."""


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
    bin_of_type = UNSEEN + np.searchsorted(np.asarray(UPPER_ENDS), train_counts, side="left")
    bin_of_type[END] = BIN_NAMES.index("EOS")
    bin_of_type[UNKNOWN] = BIN_NAMES.index("UNK")
    indices: IntArray = bin_of_type[word_ids]
    return indices


def is_rare(word_ids: IntArray, train_counts: IntArray) -> BoolArray:
    """Return a mask of the rare words."""
    return np.asarray(bin_indices(word_ids, train_counts) == BIN_NAMES.index(RARE))


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
