"""The data behind the paper's four bar charts: loss by frequency of the word and of the one before.

In nats, rounded to four places. On WikiText-103 the bins average to the perplexities of the
paper's table; on Billion Word to 0.5 to 5 % more (ADP-T 26.75, the table 25.58), so those figures
were drawn from other runs than the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from zipflm.analysis.frequency_bins import FrequencyBin


@dataclass(frozen=True)
class PaperBin:
    """One group of bars: losses in the order of the factorizations in `BIN_MODELS`."""

    name: str
    types: int
    train_tokens: int | None
    """None for the end of a sentence and for unknown words, where the paper's data has no count."""
    tokens: int
    loss: tuple[float, ...]
    previous_loss: tuple[float, ...]
    """Empty where no word of the test set follows such a word."""


RARE = "1-10"
"""The bin of the rarest words, on which the paper finds models furthest apart."""
DATASETS = {"wikitext-103": "WikiText-103", "billion-word": "Billion Word"}
BIN_MODELS: dict[str, tuple[str, ...]] = {
    "wikitext-103": ("SM", "SM-T", "BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T"),
    "billion-word": ("BPE", "BPE-T", "ASM", "CNN", "ADP", "ADP-T"),
}

BINS: dict[str, tuple[PaperBin, ...]] = {
    "wikitext-103": (
        PaperBin(
            "EOS",
            1,
            None,
            4358,
            (0.7680, 0.7331, 0.8234, 0.7602, 0.7807, 0.8061, 0.7588, 0.7382),
            (2.1176, 1.9172, 2.0082, 1.7454, 2.0171, 1.7943, 1.8493, 1.8615),
        ),
        PaperBin(
            "UNK",
            1,
            None,
            2492,
            (3.0325, 3.0716, 3.3400, 3.2074, 3.0534, 2.9707, 2.9654, 2.9469),
            (3.4447, 3.3890, 3.3618, 3.3422, 3.3483, 3.2974, 3.3420, 3.2284),
        ),
        PaperBin(
            "1-10",
            834,
            4936,
            1578,
            (10.6505, 9.1619, 10.4871, 10.2908, 9.9564, 9.4933, 9.7233, 8.2920),
            (3.4338, 3.1869, 3.3849, 3.3179, 3.3222, 3.0123, 3.2760, 2.9541),
        ),
        PaperBin(
            "11-100",
            3375,
            164034,
            6441,
            (8.0768, 7.3280, 7.5873, 7.4985, 7.6314, 7.6566, 7.5744, 7.0499),
            (3.0876, 2.9640, 3.1364, 3.0357, 2.9584, 2.8703, 3.0210, 2.8137),
        ),
        PaperBin(
            "101-1K",
            8331,
            3514895,
            21085,
            (5.9487, 5.7342, 5.8972, 5.8147, 5.6689, 5.6409, 5.6424, 5.4717),
            (2.8678, 2.8030, 2.8770, 2.8176, 2.7460, 2.7404, 2.7472, 2.6762),
        ),
        PaperBin(
            "1K-10K",
            6226,
            19205465,
            48378,
            (4.4996, 4.4521, 4.4215, 4.3593, 4.3083, 4.2797, 4.2855, 4.2193),
            (2.6561, 2.6120, 2.6396, 2.6153, 2.5479, 2.5454, 2.5383, 2.4939),
        ),
        PaperBin(
            "10K-100K",
            914,
            21706613,
            52635,
            (3.4870, 3.4774, 3.4539, 3.4154, 3.3813, 3.3740, 3.3515, 3.3329),
            (2.6115, 2.5665, 2.5913, 2.5682, 2.5153, 2.5063, 2.4928, 2.4632),
        ),
        PaperBin(
            "100K-1M",
            58,
            17089648,
            40471,
            (2.2188, 2.2092, 2.2287, 2.2104, 2.1648, 2.1312, 2.1524, 2.1435),
            (3.7087, 3.6442, 3.6578, 3.6385, 3.5778, 3.5549, 3.5495, 3.4876),
        ),
        PaperBin(
            "over 1M",
            11,
            28849766,
            68116,
            (1.3707, 1.3604, 1.4002, 1.4121, 1.3438, 1.3437, 1.3420, 1.3366),
            (3.9502, 3.8588, 3.9106, 3.8430, 3.8097, 3.7756, 3.7672, 3.7122),
        ),
    ),
    "billion-word": (
        PaperBin("EOS", 1, None, 306656, (0.0396, 0.0407, 0.0408, 0.0439, 0.0421, 0.0349), ()),
        PaperBin(
            "UNK",
            1,
            None,
            24036,
            (4.3984, 4.3811, 4.3073, 4.3169, 4.2686, 4.3018),
            (4.6100, 4.6222, 4.5844, 4.5615, 4.5603, 4.5274),
        ),
        PaperBin(
            "1-10",
            19641,
            117463,
            20619,
            (14.3535, 14.6922, 13.6793, 13.3890, 13.5991, 14.3313),
            (3.4540, 3.5025, 3.4765, 3.1331, 3.6735, 3.5343),
        ),
        PaperBin(
            "11-100",
            57932,
            2543702,
            73008,
            (10.5165, 10.5982, 10.4238, 10.3111, 10.3783, 10.1532),
            (3.1027, 3.1509, 2.9478, 2.8901, 3.0714, 2.9328),
        ),
        PaperBin(
            "101-1K",
            61886,
            21227835,
            229014,
            (7.9920, 8.0202, 7.5614, 7.4859, 7.5447, 7.5487),
            (2.8398, 2.8652, 2.7459, 2.7417, 2.7332, 2.7187),
        ),
        PaperBin(
            "1K-10K",
            21776,
            67243310,
            681390,
            (6.0472, 6.0824, 5.9289, 5.8733, 5.9160, 5.9491),
            (2.7216, 2.7442, 2.6884, 2.6770, 2.6698, 2.6721),
        ),
        PaperBin(
            "10K-100K",
            5465,
            157053276,
            1587836,
            (4.6468, 4.6684, 4.6015, 4.5676, 4.5827, 4.5996),
            (2.6567, 2.6723, 2.6268, 2.6152, 2.6148, 2.6125),
        ),
        PaperBin(
            "100K-1M",
            767,
            175598539,
            1777851,
            (3.5898, 3.6037, 3.5653, 3.5589, 3.5522, 3.5527),
            (2.8880, 2.8994, 2.8632, 2.8532, 2.8529, 2.8463),
        ),
        PaperBin(
            "over 1M",
            66,
            334208057,
            3385017,
            (1.8128, 1.8220, 1.8121, 1.8275, 1.8076, 1.7787),
            (3.7966, 3.8149, 3.7470, 3.7359, 3.7337, 3.7274),
        ),
    ),
}


def bins_of_paper(dataset: str, *, previous: bool) -> list[FrequencyBin]:
    """The paper's bins in the shape of our own."""
    models = BIN_MODELS[dataset]
    found = []
    for b in BINS[dataset]:
        values = b.previous_loss if previous else b.loss
        loss: dict[str, float | None] = dict.fromkeys(models)
        loss.update(zip(models, values, strict=False))
        found.append(
            FrequencyBin(
                name=b.name,
                types=b.types,
                train_tokens=b.train_tokens,
                tokens=b.tokens,
                loss=loss,
            )
        )
    return found
