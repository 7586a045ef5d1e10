"""The sentences of a report: headline, lead, key figures, findings and captions.

They say no more than the intervals allow: one model is better only where zero is excluded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zipflm.config import Nesterov, TransformerDecoder
from zipflm.presets import preset
from zipflm.studies.bins import DATASETS, RARE, FrequencyBin
from zipflm.studies.findings import claims, papers_dataset, summary
from zipflm.studies.statistics import FEW
from zipflm.studies.study import ModelRow, Study
from zipflm.studies.tables import bin_loss, duration, millions, number
from zipflm.studies.word_lists import MIN_BLOCKS, MIN_TOKENS

PAIRS_CAPTION = (
    "How much higher (+) or lower (\u2212) the perplexity of the row is than that of the column on "
    "the same text, in per cent, with its 95 % interval; in bold where that excludes zero."
)
SEEN_CAPTION = (
    "Words are running words of the training text, whatever tokens a model is made of; operations "
    "are additions and multiplications as the config's cost model counts them."
)
TUNING_CAPTION = (
    "Every model was trained once with each setting; the one with the lowest perplexity on the "
    "valid set was taken."
)
CONTEXT_CAPTION = (
    "Perplexity with part of every block given as context that is not scored: each word then has "
    "at least that many words before it."
)
_ONE_SEED = "intervals cover the choice of the text, not the training."
_DECODER = (
    "positions",
    "qk_norm",
    "activation",
    "norm",
    "final_norm",
    "bias",
    "input_residual",
    "value_residual",
    "attention_gate",
)
"""Fields of a decoder that are told where they are not the paper's."""


def headline(study: Study) -> str:
    """`ADP and ADP-T are best, 170 and 172, not distinguishable; SM follows with 285, ...`"""
    if study.missing:  # no verdict: a model that is not there may be the best
        return f"{unfinished(study)}; missing: {join(study.missing)}"
    name, level = study.headline_name, study.level_with_best
    top = [row for row in study.ranked if row.label in level]
    rest = [row for row in study.ranked if row.label not in level]
    best = study.ranked[0]
    if len(study.ranked) == 1:
        return f"{best.label}: {name} {_number(study, best)}"
    if not study.differences:
        return (
            f"{best.label} has the lowest {name}, {_number(study, best)}; the text is too short or "
            "has too few sources to say more"
        )
    if not rest:
        return (
            f"{join(level)} cannot be told apart: {name} {_number(study, top[0])} to "
            f"{_number(study, top[-1])}"
        )
    text = f"{best.label} is best, {name} {_number(study, best)}"
    if len(top) > 1:
        numbers = join([_number(study, row) for row in top])
        text = f"{join(level)} are best, {numbers}, not distinguishable"
    text += f"; {rest[0].label} follows with {_number(study, rest[0])}"
    if len(rest) > 1:
        text += f", {rest[-1].label} is last with {_number(study, rest[-1])}"
    return text


def unfinished(study: Study) -> str:
    """`Unfinished: 5 of 8 models`; models without all of their seeds do not count."""
    total = len(study.rows)
    return f"Unfinished: {total - len(study.missing)} of {total} models"


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _number(study: Study, row: ModelRow) -> str:
    """Three digits, or more where a perplexity has more before its point."""
    value = study.headline(row).mean
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def lead(study: Study) -> str:
    """The size of the study, its text and its recipe, in a few sentences."""
    total, seeds = len(study.rows), sorted({len(row.members) for row in study.rows})
    tokens = sum(b.tokens for b in study.word_bins)
    parts = [
        unfinished(study) if study.missing else "1 model" if total == 1 else f"{total} models",
        f"{' to '.join(map(str, seeds))} seed{'s' if seeds != [1] else ''} each",
        f"{tokens:,} words of the {study.split} set",
        *(str(value) for key, value in study.facts.items() if key in ("data", "training")),
    ]
    text = ", ".join(parts) + "."
    if "held equal" in study.facts:
        text += f" Held equal: {study.facts['held equal']}."
    if unlike := _unlike_the_paper(study):
        text += f" Unlike the paper's models: {join(unlike)}."
    passes = [row.seen.passes for row in study.finished if row.seen]
    if passes:
        low, high = f"{min(passes):.2f}", f"{max(passes):.2f}"
        text += f" That is {low if low == high else f'{low} to {high}'} passes over the text."
    if study.differences and not all(pair.has_all_seeds for pair in study.differences):
        text += f" One seed per model: {_ONE_SEED}"
    return text


def _unlike_the_paper(study: Study) -> list[str]:
    """`positions=rotary`, `Muon`: what the paper's decoders and training do not have."""
    configs = [member.config for row in study.rows for member in row.members]
    theirs = preset("wikitext-103").decoder
    found = [
        f"{name}={getattr(config.decoder, name)}"
        for name in _DECODER
        for config in configs
        if isinstance(config.decoder, TransformerDecoder)
        and getattr(config.decoder, name) != getattr(theirs, name)
    ]
    found += [type(c.training.optimizer).__name__ for c in configs]
    return [name for name in dict.fromkeys(found) if name != Nesterov.__name__]


def tiles(study: Study) -> list[tuple[str, str, str]]:
    """Key figures: a number, the model that has it, and what it is."""
    if study.missing:
        state, _, number_done = unfinished(study).partition(": ")
        return [(number_done, state, f"missing: {join(study.missing)}")]
    if len(study.ranked) < 2:
        return []
    best = study.ranked[0]
    small = min(study.finished, key=lambda row: row.num_params)
    found = [
        (number(study.headline(best).mean), best.label, f"lowest {study.headline_name}"),
        (millions(small.num_params), small.label, "fewest parameters"),
    ]
    times = {row.label: t for row in study.finished if (t := row.mean("seconds")) is not None}
    # A time that is not comparable may hide the shortest.
    if times and not any(row.doubts for row in study.finished):
        fast = min(times, key=lambda label: times[label])
        what = "shortest training, compilation left out"
        found.append((duration(times[fast]), fast, what))
    if rare := rarest(study.word_bins):
        loss, label = min((loss, label) for label, loss in rare.loss.items() if loss is not None)
        what = f"lowest loss on words that training has {rare.name.replace('-', ' to ')} times"
        found.append((f"{loss:.2f}", label, what))
    return found


def findings(study: Study) -> list[str]:
    """Sentences about the finished rows; no comparison where there is nothing to compare."""
    # A mean over fewer seeds than were asked for must not look like one over all.
    found = [
        f"{row.label} is without some of its seeds: {row.problem}."
        for row in study.finished
        if row.problem
    ]
    found += [f"{row.label} {doubt}." for row in study.rows for doubt in row.doubts]
    if len(study.finished) > 1 and not study.missing:
        found += _extremes("On words", study.word_bins)
        found += _extremes("After a word", study.previous_bins)
        found.append(_chance(study))
    return found


def rarest(bins: Sequence[FrequencyBin]) -> FrequencyBin | None:
    """The rarest words there are, on which the paper finds the models furthest apart; None if all
    are frequent."""
    return next((b for b in bins if b.name in (RARE, "11-100") and b.tokens), None)


def _extremes(where: str, bins: Sequence[FrequencyBin]) -> list[str]:
    b = rarest(bins)
    if b is None:
        return []
    ranked = sorted((loss, label) for label, loss in b.loss.items() if loss is not None)
    best, worst = ranked[0][1], ranked[-1][1]
    return [
        f"{where} that occur{'' if where.endswith('s') else 's'} {b.name} times in the training "
        f"text, {best} has the lowest loss, {bin_loss(b, best)} nats, and {worst} the highest, "
        f"{bin_loss(b, worst)}."
    ]


def _chance(study: Study) -> str:
    """What the intervals cover."""
    pairs = len(study.differences)
    if not pairs:
        return "The text is too short or has too few sources for intervals: cannot tell."
    text = "Intervals are 95 % for each comparison by itself."
    if pairs > 1:
        text += f" Of {pairs} pairs that do not differ, {max(1, round(pairs / 20))} would seem to."
    if missing := math.comb(len(study.finished), 2) - pairs:
        text += (
            f" {missing} of {pairs + missing} pairs have no interval: their difference has one "
            "value in one part of the text and another in the rest, too few sources to tell."
        )
    if len(study.blocks) < FEW:
        text += f" With only {len(study.blocks)} blocks of text they are wide and rough."
    seeds = min(len(row.scored) for row in study.finished)
    if seeds > 1:
        return f"{text} They cover the choice of the text and, with {seeds} seeds, the training."
    return (
        f"{text} They cover the choice of the text alone: where a model was trained with one seed, "
        "another seed may change the order of models that are close."
    )


def caption(study: Study) -> str:
    """What the comparison table shows, and what its words mean."""
    text = (
        "Perplexity is exp of the mean loss per word, lower is better; sub-word models are scored "
        "per word too. Parameters that input and output share count once, with the input."
    )
    if study.differences:
        text += (
            " 'To the best' is the difference to the best model on the same text, with its 95 % "
            "interval; 'not told apart' marks models whose interval includes no difference."
        )
    if study.has_unknown:
        text += (
            " Unknown words are one symbol to word models, while sub-word models may have to "
            "spell them: the column 'known words' leaves them out."
        )
    if any(row.is_busy for row in study.rows):
        text += (
            " Times marked 'busy' exceed the CPU time of the training thread by more than a third: "
            "other processes held the CPU."
        )
    if any(row.paper for row in study.rows):
        text += (
            f" Columns headed 'the paper's' are its printed figures on {DATASETS[study.dataset]}, "
            "from its own training on its own machines; ours compare to them only on that text."
        )
    return text


def words_caption(study: Study) -> str:
    if not study.words:
        return "No two models have a result to compare."
    return (
        f"Mean difference in loss to {study.reference} in nats, below zero where the model is "
        f"better; beside it how often the word occurs in the training text and in the "
        f"{study.split} set. Tested were words with at least {MIN_TOKENS} occurrences in "
        f"{MIN_BLOCKS} or more of {len(study.blocks)} blocks (Student's t over blocks). Shown are "
        "those with the largest differences of all that pass, of which at most one in twenty is "
        "expected to be chance (Benjamini and Hochberg)."
    )


def interval_caption(study: Study) -> str:
    """How intervals were made."""
    return f"95 % intervals come from {study.blocks.describe()}."


def paper_caption(study: Study) -> str:
    """What the verdicts mean, and how many there are of each."""
    text = (
        f"The paper's numbers are of {DATASETS[papers_dataset(study)]}; ours are the change of the "
        f"{study.headline_name}, or of the loss in nats, with 95 % intervals. Every pair of models "
        "is compared, the better one of the paper first; rare words are those that training has "
        f"{RARE.replace('-', ' to ')} times. In short, {summary(claims(study))}."
    )
    if not all(pair.has_all_seeds for pair in study.differences):
        text += f" With one seed, {_ONE_SEED}"
    return text
