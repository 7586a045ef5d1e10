"""Sentences of the report: headline, lead, key figures, findings and captions.

A model is called better only if the interval of the difference excludes zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zipflm.studies.bins import DATASETS, RARE, FrequencyBin
from zipflm.studies.findings import paper_dataset, summary
from zipflm.studies.statistics import FEW_BLOCKS, MIN_INTERVAL_BLOCKS
from zipflm.studies.study import NOT_COMPILED, ModelRow, Study
from zipflm.studies.tables import duration, millions, number
from zipflm.studies.word_lists import MIN_BLOCKS, MIN_TOKENS

PAIRS_CAPTION = (
    "Difference in perplexity of the row's model from the column's model, on the same text, with "
    "95% intervals; bold if the interval excludes zero."
)
TUNING_CAPTION = (
    "Every model was trained once with each setting. The setting with the lowest perplexity "
    "on the validation set was chosen."
)
CONTEXT_CAPTION = (
    "The context is the number of tokens at the start of each block that are not scored. It is "
    "shorter at the start of the text and before very long lines."
)


def headline(study: Study) -> str:
    """`ADP and ADP-T are best (170 and 172, no significant difference); SM follows, ...`"""
    if study.missing:  # a missing model could be the best
        return f"{unfinished(study)}; missing: {join(study.missing)}"
    name, tied = study.headline_name, study.tied_with_best
    top = [row for row in study.ranked if row.label in tied]
    rest = [row for row in study.ranked if row.label not in tied]
    best = study.ranked[0]
    if len(study.ranked) == 1:
        return f"{best.label}: {name} {_number(study, best)}"
    if not study.differences:
        return (
            f"{best.label} has the lowest {name}, {_number(study, best)}; this text cannot show "
            "whether differences are significant"
        )
    if not rest:
        return (
            f"No significant difference between {join(tied)}: {name} {_number(study, top[0])} to "
            f"{_number(study, top[-1])}"
        )
    text = f"{best.label} is best, {name} {_number(study, best)}"
    if len(top) > 1:
        numbers = join([_number(study, row) for row in top])
        text = f"{join(tied)} are best ({numbers}, no significant difference)"
    text += f"; {rest[0].label} follows with {_number(study, rest[0])}"
    if len(rest) > 1:
        text += f", {rest[-1].label} is last with {_number(study, rest[-1])}"
    return text


def unfinished(study: Study) -> str:
    """`Unfinished: 5 of 8 models done`, counting models that have all seeds."""
    total = len(study.rows)
    return f"Unfinished: {total - len(study.missing)} of {total} models done"


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _number(study: Study, row: ModelRow) -> str:
    value = study.headline(row).mean
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _range(numbers: Sequence[int]) -> str:
    """`2` or `1 to 3`, from ascending numbers."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def lead(study: Study) -> str:
    """Describe the number of models and seeds, the text and the settings in a few sentences."""
    total, seeds = len(study.rows), sorted({len(row.members) for row in study.rows})
    tokens = sum(b.tokens for b in study.word_bins)
    parts = [
        unfinished(study) if study.missing else "1 model" if total == 1 else f"{total} models",
        f"{_range(seeds)} seed{'s' if seeds != [1] else ''} each",
        f"{tokens:,} words of the {study.split} set",
        *(str(value) for key, value in study.protocol.items() if key in ("data", "training")),
    ]
    text = ", ".join(parts) + "."
    if "held equal" in study.protocol:
        text += f" Equal for all models: {study.protocol['held equal']}."
    return text


def tiles(study: Study) -> list[tuple[str, str, str]]:
    """Return the key figures at the top of the page: a number, its model and a description."""
    if study.missing:
        state, _, number_done = unfinished(study).partition(": ")
        return [(number_done, state, f"missing: {join(study.missing)}")]
    if len(study.ranked) < 2:
        return []
    best = study.ranked[0]
    small = min(study.finished, key=lambda row: row.num_params)
    figures = [
        (number(study.headline(best).mean), best.label, f"lowest {study.headline_name}"),
        (millions(small.num_params), small.label, "fewest parameters"),
    ]
    times = {row.label: t for row in study.finished if (t := row.mean("seconds")) is not None}
    is_timed = study.protocol.get("held equal", "").startswith("seconds")
    if times and not is_timed and not any(row.ran_uncompiled for row in study.finished):
        fast = min(times, key=lambda label: times[label])
        description = "shortest training time, without compilation"
        figures.append((duration(times[fast]), fast, description))
    if rare := rarest(study.word_bins):
        loss, label = min((loss, label) for label, loss in rare.loss.items() if loss is not None)
        description = (
            f"lowest loss on words seen {rare.name.replace('-', ' to ')} times in training"
        )
        figures.append((f"{loss:.2f}", label, description))
    return figures


def findings(study: Study) -> list[str]:
    """Return the sentences below the comparison table."""
    sentences = [
        f"{row.label} has no result for some seeds: {row.problem}."
        for row in study.finished
        if row.problem
    ]
    sentences += [f"{row.label} {NOT_COMPILED}." for row in study.rows if row.ran_uncompiled]
    if len(study.finished) > 1 and not study.missing:
        sentences.append(_about_intervals(study))
    return sentences


def rarest(bins: Sequence[FrequencyBin]) -> FrequencyBin | None:
    """Return the bin of words seen 1 to 10 times in training, else 11 to 100 times, else None."""
    return next((b for b in bins if b.name in (RARE, "11-100") and b.tokens), None)


def _about_intervals(study: Study) -> str:
    pairs = len(study.differences)
    if not pairs:
        if len(study.blocks) < MIN_INTERVAL_BLOCKS:
            return "The text is too short for intervals."
        return (
            "No pair of models has an interval: the text seems to consist of two parts between "
            "which the differences shift, or its blocks are too few or too unequal."
        )
    seeds = sorted({len(row.scored) for row in study.finished})
    text = (
        f"Intervals cover the variation between texts and between {_range(seeds)} seeds."
        if seeds[0] > 1
        else "With one seed, intervals cover only the variation between texts; another seed could "
        "change the order of models with similar results."
    )
    if missing := math.comb(len(study.finished), 2) - pairs:
        text += (
            f" {missing} of {pairs + missing} pairs have no interval, because the difference "
            "shifts at one point of the text, as if the text came from two sources."
        )
    if len(study.blocks) < FEW_BLOCKS:
        text += f" With only {len(study.blocks)} blocks of text, intervals are wide and imprecise."
    return text


def caption(study: Study) -> str:
    text = (
        "Perplexity is exp(mean loss per word), even for subword models; lower is better. "
        "Parameters shared by input and output count once, with the input. 'Words seen' counts the "
        "words of the training text that the model has read, including repetitions."
    )
    if study.differences:
        text += (
            " The column 'vs. best' shows the difference from the best model on the same text and "
            "its 95% interval; a difference is not significant if the interval includes zero."
        )
    if study.has_unknown:
        text += (
            " Unknown words are a single symbol for word models, but subword models predict their "
            "pieces; the column 'known words' leaves them out."
        )
    if any(row.paper for row in study.rows):
        text += (
            f" The columns labeled 'the paper's' show the published results on "
            f"{DATASETS[study.dataset]}; compare perplexities only on the same text."
        )
    return text


def words_caption(study: Study) -> str:
    if not study.words:
        return "At least two models are needed for this table."
    return (
        f"Mean difference in loss from {study.reference} in nats (negative: the model is better), "
        "and occurrences in the training text. Words that occur at least "
        f"{MIN_TOKENS} times in the {study.split} set, in at least {MIN_BLOCKS} of "
        f"{len(study.blocks)} blocks, are tested (Student's t over blocks); the largest "
        "significant differences are shown, with a false discovery rate of 5% (Benjamini and "
        "Hochberg)."
    )


def interval_caption(study: Study) -> str:
    if len(study.blocks) < MIN_INTERVAL_BLOCKS:
        return "The text is too short for 95% intervals."
    return f"95% intervals are computed from {study.blocks.describe()}."


def paper_caption(study: Study) -> str:
    return (
        "Every pair of models is compared; the one that is better in the paper comes first. The "
        f"paper's numbers are for {DATASETS[paper_dataset(study)]}; those of this study are "
        f"differences between the two models, in percent of {study.headline_name} or in nats of "
        "loss, with 95% intervals. Rare words "
        f"occur {RARE.replace('-', ' to ')} times in training. Summary: {summary(study)}."
    )
