"""The data behind the paper's four bar charts: loss by frequency of the word and of the one before.

`paper_bins.csv` has them in nats, rounded to four places. On WikiText-103 the bins average to the
perplexities of the paper's table; on Billion Word to 0.5 to 5 % more (ADP-T 26.75, the table
25.58), so those figures were drawn from other runs than the table.
"""

from __future__ import annotations

import csv
from importlib import resources

from zipflm.analysis.frequency_bins import FrequencyBin

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
    path = resources.files("zipflm.analysis").joinpath("paper_bins.csv")
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
