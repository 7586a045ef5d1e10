"""The paper's published results. The data of its bar charts is in `paper_bins.csv`."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

SOURCE = "Baevski & Auli, Adaptive Input Representations for Neural Language Modeling, ICLR 2019"
REFERENCE = "ADP-T"
"""The main model of the paper. Studies compare the others to it."""


@dataclass(frozen=True)
class PaperModel:
    """One row of one of the paper's tables."""

    table: str
    row: str
    preset: str
    """The preset of the same model."""
    params: str
    """Millions of parameters, with the digits of the paper; may be empty."""
    valid: float | None = None
    test: float | None = None
    hours: int | None = None

    def matches(self, num_params: int) -> bool:
        """Return whether a parameter count rounds to the printed number."""
        printed = Decimal(self.params)
        millions = Decimal(num_params) / 1_000_000
        return millions.quantize(printed, rounding=ROUND_HALF_UP) == printed


_WIKI, _GBW = "wikitext-103", "billion-word"
_T1, _T2 = "Table 1 (Billion Word, best)", "Table 2 (WikiText-103, best)"
_T3, _T4 = "Table 3 (WikiText-103)", "Table 4 (Billion Word)"
_T7 = "Table 7 (WikiText-103, appendix)"

MODELS = (
    PaperModel(_T1, "Char-CNN", f"{_GBW}/CNN/main-result", "366", None, 25.88, 79),
    PaperModel(_T1, "Adaptive inputs", f"{_GBW}/ADP-T/main-result", "331", None, 25.22, 55),
    PaperModel(_T1, "Adaptive inputs (large)", f"{_GBW}/ADP-T/large", "465", None, 23.91, 72),
    PaperModel(
        _T1, "Adaptive inputs (very large)", f"{_GBW}/ADP-T/very-large", "1026", None, 23.02, 145
    ),
    PaperModel(
        _T2, "Adaptive inputs", f"{_WIKI}/ADP-T/block-3072-context-2560", "247", 17.97, 18.70, 67
    ),
    PaperModel(_T3, "SM", f"{_WIKI}/SM", "476.8", 23.87, 24.92, 57),
    PaperModel(_T3, "BPE", f"{_WIKI}/BPE", "270", 23.13, 24.25, 30),
    PaperModel(_T3, "BPE-T", f"{_WIKI}/BPE-T", "235.7", 22.46, 23.45, 30),
    PaperModel(_T3, "SM-T", f"{_WIKI}/SM-T", "339.7", 22.63, 23.38, 56),
    PaperModel(_T3, "ASM", f"{_WIKI}/ASM", "263.1", 21.23, 22.18, 35),
    PaperModel(_T3, "CNN", f"{_WIKI}/CNN", "266.3", 20.86, 21.79, 70),
    PaperModel(_T3, "ADP", f"{_WIKI}/ADP", "291.3", 20.95, 21.74, 34),
    PaperModel(_T3, "ADP-T", f"{_WIKI}/ADP-T", "246.9", 19.79, 20.51, 30),
    PaperModel(_T4, "BPE-T", f"{_GBW}/BPE-T", "234.7", 27.44, 27.51, 34),
    PaperModel(_T4, "BPE", f"{_GBW}/BPE", "267.8", 27.02, 27.13, 35),
    PaperModel(_T4, "ASM", f"{_GBW}/ASM", "532.8", 26.97, 27.06, 62),
    PaperModel(_T4, "CNN", f"{_GBW}/CNN", "365.8", 26.13, 26.25, 92),
    PaperModel(_T4, "ADP", f"{_GBW}/ADP", "458.4", 26.38, 26.49, 65),
    PaperModel(_T4, "ADP-T", f"{_GBW}/ADP-T", "330.8", 25.51, 25.58, 43),
    PaperModel(_T7, "256d emb, adaptive", f"{_WIKI}/ASM/input-256", "314.7", 23.39),
    PaperModel(_T7, "128d emb, adaptive", f"{_WIKI}/ASM/input-128", "280.3", 21.51),
    PaperModel(_T7, "64d emb, adaptive", f"{_WIKI}/ASM/input-64", "263.1", 21.23),
    PaperModel(_T7, "32d emb, adaptive", f"{_WIKI}/ASM/input-32", "254.5", 21.78),
    PaperModel(_T7, "512d emb, 512d softmax (tied)", f"{_WIKI}/SM-T", "339.7", 22.63),
    PaperModel(_T7, "same, dropout 0.4", f"{_WIKI}/SM-T/dropout-0.4", "339.7", 28.31),
    PaperModel(_T7, "512d emb, 512d softmax", f"{_WIKI}/SM", "476.8", 23.87),
    PaperModel(_T7, "same, dropout 0.4", f"{_WIKI}/SM/dropout-0.4", "476.8", 27.64),
    PaperModel(_T7, "256d emb, 256d softmax (tied)", f"{_WIKI}/SM-T/dim-256", "270.6", 22.65),
    PaperModel(_T7, "256d emb, 256d softmax", f"{_WIKI}/SM/dim-256", "339.1", 24.13),
    PaperModel(_T7, "64d emb, 512d softmax", f"{_WIKI}/SM/input-64", "356.3", 24.74),
    PaperModel(_T7, "tied emb, not proj", f"{_WIKI}/ADP-T/tie-embeddings", "247.3", 20.06),
    PaperModel(_T7, "tied emb/proj, not head", f"{_WIKI}/ADP-T/tie-projections", "246.9", 19.79),
    PaperModel(_T7, "tied emb/proj + head", f"{_WIKI}/ADP-T/tie-head", "246.9", 20.06),
    PaperModel(_T7, "512d, no dim reduction, tied", f"{_WIKI}/ADP-T/no-reduction", "340.2", 25.48),
)
"""All table rows with a parameter count for the paper's own models, in the order of the paper."""


def comparison_row(dataset: str, factorization: str) -> PaperModel | None:
    """Return the row of a factorization in Table 3 or 4 of the paper."""
    name = f"{dataset}/{factorization}"
    return next((m for m in MODELS if m.table in (_T3, _T4) and m.preset == name), None)


# Number of GPUs that the paper trained on.
GPUS = {"wikitext-103": 8, "billion-word": 32}

# (training block, context at inference) -> (validation, test) perplexity of ADP-T on WikiText-103.
CONTEXT: dict[tuple[int, int], tuple[float, float]] = {
    (512, 0): (19.79, 20.51),
    (512, 480): (18.35, 19.03),
    (2048, 0): (18.96, 19.53),
    (2048, 1536): (18.23, 18.88),
    (3072, 0): (18.63, 19.34),
    (3072, 2560): (17.97, 18.7),
}

# Words per band in thousands -> validation perplexity of ADP-T on WikiText-103. The paper
# prints 20/40/200 twice, 19.79 and 19.99; the first is the model of its main table.
BANDS: dict[tuple[int, ...], float] = {
    (20, 40, 200): 19.79,
    (20, 140, 100): 20.26,
    (20, 40, 60, 140): 20.53,
    (60, 100, 100): 20.52,
    (5, 155, 100): 20.06,
    (10, 60, 190): 19.79,
}

# Dropout in the tail bands -> validation perplexity of the paper's "ADP" row on WikiText-103.
TAIL_DROPOUT: dict[float, float] = {0.0: 24.74, 0.2: 21.23}


def setting_row(dataset: str, label: str) -> PaperModel | None:
    """Return the paper's result for one setting of an ablation, e.g. `ADP-T bands 5k/155k/100k`.

    >>> setting_row("wikitext-103", "ADP-T bands 5k/155k/100k").valid
    20.06
    """
    model, _, setting = label.partition(" ")
    if dataset != _WIKI:
        return None
    for sizes, valid in BANDS.items():
        name = "/".join(f"{size}k" for size in sizes)
        if (model, setting.lower()) == ("ADP-T", f"bands {name}"):
            return PaperModel("Table 8 (bands)", label, f"{_WIKI}/ADP-T", "", valid)
    for rate, valid in TAIL_DROPOUT.items():
        if (model, setting) == ("ADP", f"tail dropout {rate:g}"):
            return PaperModel("Table 6 (tail dropout)", label, f"{_WIKI}/ADP", "", valid)
    return None
