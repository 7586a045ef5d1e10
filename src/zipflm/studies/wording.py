"""The sentences of a report: headline, lead, key figures, findings and captions.

They say no more than the intervals allow: one model is better only where zero is excluded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zipflm.config import Nesterov
from zipflm.studies.bins import DATASETS, RARE, FrequencyBin
from zipflm.studies.paper_findings import claims, papers_dataset, percent_of, summary
from zipflm.studies.statistics import FEW
from zipflm.studies.study import Row, Study
from zipflm.studies.tables import columns, duration, millions, number
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
_RARE_BINS = (RARE, "11-100")


def headline(study: Study) -> str:
    """`ADP and ADP-T are best, 170 and 172, not distinguishable; sub-words trail (285 and 313).`"""
    if study.missing:  # no verdict: a model that is not there may be the best
        return f"{unfinished(study)}; missing: {join(study.missing)}"
    ranked = study.ranked
    best = ranked[0]
    if len(ranked) == 1:
        return f"{best.label}: {study.headline_name} {_number(study, best)}"
    level = study.level_with_best
    top = [row for row in ranked if row.label in level]
    rest = [row for row in ranked if row.label not in level]
    if not study.differences:
        return (
            f"{best.label} has the lowest {study.headline_name}, {_number(study, best)}; the text "
            "is too short or has too few sources to say more"
        )
    if not rest:
        start = f"The {len(top)} models" if len(top) > 2 else join([row.label for row in top])
        return (
            f"{start} cannot be told apart: {study.headline_name} {_number(study, top[0])} to "
            f"{_number(study, top[-1])}"
        )
    if len(top) == 1:
        text = f"{best.label} is best, {study.headline_name} {_number(study, best)}"
    else:
        numbers = join([_number(study, row) for row in top])
        text = f"{join([row.label for row in top])} are best, {numbers}, not distinguishable"
    return f"{text}; {_rest(study, rest)}"


def unfinished(study: Study) -> str:
    """`Unfinished: 5 of 8 models`; models without all of their seeds do not count."""
    total = len(study.rows)
    return f"Unfinished: {total - len(study.missing)} of {total} models"


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _rest(study: Study, rest: Sequence[Row]) -> str:
    """Who follows and who is last."""
    if len(rest) == 1:
        return f"{rest[0].label} follows with {_number(study, rest[0])}"
    pieces = [row for row in rest if row.first.config.batches.unit == "bpe"]
    others = [row for row in rest if row not in pieces]
    if pieces and others and rest[-len(pieces) :] == pieces:
        numbers = join([_number(study, row) for row in pieces])
        last = f"sub-words trail ({numbers})" if len(pieces) > 1 else ""
        last = last or f"{pieces[0].label} is last with {numbers}"
    else:
        last = f"{rest[-1].label} is last with {_number(study, rest[-1])}"
    return f"{rest[0].label} follows with {_number(study, rest[0])}, {last}"


def _number(study: Study, row: Row) -> str:
    """Three digits, or more where a perplexity has more before its point."""
    value = study.headline(row).mean
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_UNLIKE_THE_PAPER = (
    ("positions", "rotary", "rotary positions"),
    ("qk_norm", True, "normalised queries and keys"),
    ("activation", "relu_squared", "squared ReLU"),
    ("norm", "rms", "RMS norm"),
    ("final_norm", True, "a norm after the last layer"),
    ("bias", False, "no biases"),
)
"""Fields of a decoder with a value that the paper's do not have, and its name."""


def _unlike_the_paper(study: Study) -> list[str]:
    configs = [member.config for row in study.rows for member in row.members]
    found = [
        name
        for field, value, name in _UNLIKE_THE_PAPER
        if any(getattr(config.decoder, field) == value for config in configs)
    ]
    optimizers = [type(config.training.optimizer).__name__ for config in configs]
    return found + [name for name in dict.fromkeys(optimizers) if name != Nesterov.__name__]


def lead(study: Study) -> str:
    """The size of the study, its text and its recipe, in a few sentences."""
    tokens = sum(b.tokens for b in study.word_bins)
    total = len(study.rows)
    models = "1 model" if total == 1 else f"{total} models"
    if study.missing:
        models = unfinished(study)
    seeds = sorted({len(row.members) for row in study.rows})
    times = f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''} each"
    if len(seeds) > 1:
        times = f"{seeds[0]} to {seeds[-1]} seeds each"
    parts = [models, times, f"{tokens:,} words of the {study.split} set"]
    parts += [str(value) for key, value in study.facts.items() if key in ("data", "training")]
    text = ", ".join(parts) + "."
    if "held equal" in study.facts:
        equal = study.facts["held equal"]
        text += f" Held equal: {equal}."
    if unlike := _unlike_the_paper(study):
        text += f" Unlike the paper's models: {join(unlike)}."
    passes = [row.seen.passes for row in study.finished if row.seen]
    if passes:
        low, high = f"{min(passes):.2f}", f"{max(passes):.2f}"
        text += f" That is {low if low == high else f'{low} to {high}'} passes over the text."
    if study.differences and not all(pair.has_all_seeds for pair in study.differences):
        text += " One seed a model: intervals cover the choice of the text, not the training."
    return text


def tiles(study: Study) -> list[tuple[str, str, str]]:
    """Key figures: a number, the model that has it, and what it is."""
    rows = study.finished
    if study.missing:
        state, _, number_done = unfinished(study).partition(": ")
        return [(number_done, state, f"missing: {join(study.missing)}")]
    if len(rows) < 2:
        return []
    best = min(rows, key=lambda row: study.headline(row).mean)
    small = min(rows, key=lambda row: row.num_params)
    timed = [row for row in rows if row.seconds]
    if any(row.doubts for row in timed):
        timed = []  # a time that is not comparable may hide the shortest
    found = [
        (number(study.headline(best).mean), best.label, f"lowest {study.headline_name}"),
        (millions(small.num_params), small.label, "fewest parameters"),
    ]
    if timed:
        fast = min(timed, key=lambda row: row.seconds.mean if row.seconds else 0.0)
        assert fast.seconds is not None
        found.append(
            (duration(fast.seconds.mean), fast.label, "shortest training, compilation left out")
        )
    rare = rarest(study.word_bins)
    if rare is not None:
        loss, label = min((loss, label) for label, loss in rare.loss.items() if loss is not None)
        what = f"lowest loss on words that training has {rare.name.replace('-', ' to ')} times"
        found.append((f"{loss:.2f}", label, what))
    return found


def findings(study: Study) -> list[str]:
    """Sentences about the finished rows; no comparison where there is nothing to compare."""
    found = _incomplete(study)
    found += [f"{row.label} {doubt}." for row in study.rows for doubt in row.doubts]
    if len(study.finished) > 1 and not study.missing:
        found += [_overall(study), _rare(study), _previous(study), _chance(study)]
    return [sentence for sentence in found if sentence]


def _incomplete(study: Study) -> list[str]:
    """A mean over fewer seeds than were asked for must not look like one over all."""
    return [
        f"{row.label} is without some of its seeds. {row.problem[0].upper()}{row.problem[1:]}."
        for row in study.finished
        if row.problem
    ]


def _overall(study: Study) -> str:
    """The best row, who cannot be told from it, and who is next."""
    best, level = study.ranked[0], study.level_with_best
    start = (
        f"{best.label} has the lowest {study.headline_name} ({number(study.headline(best).mean)})"
    )
    if not study.differences:
        return f"{start}."
    if len(level) > 1:
        verb = "cannot be told from it"
        return f"{start}; {join(level[1:])} {verb}."
    second = study.ranked[1].label
    found = study.difference(best.label, second)
    assert found is not None  # it is better than all others, so there are intervals
    return f"{start} and is better than {second}, the next: {percent_of(found.nats)}."


def _rare(study: Study) -> str:
    """The rarest bin that has words: where the paper finds the models furthest apart."""
    b = rarest(study.word_bins)
    if b is None:
        return ""
    return (
        f"On words that occur {b.name} times in the training text ({b.tokens:,} words of the "
        f"{study.split} set), {_extremes(b)}."
    )


def _previous(study: Study) -> str:
    b = rarest(study.previous_bins)
    if b is None:
        return ""
    return f"After a word that occurs {b.name} times in the training text, {_extremes(b)}."


def rarest(bins: Sequence[FrequencyBin]) -> FrequencyBin | None:
    """The rarest words there are; None if all are frequent."""
    return next((b for b in bins if b.name in _RARE_BINS and b.tokens), None)


def _extremes(b: FrequencyBin) -> str:
    ranked = sorted((loss, label) for label, loss in b.loss.items() if loss is not None)
    (_, best), (_, worst) = ranked[0], ranked[-1]
    return (
        f"{best} has the lowest loss ({_loss(b, best)}) and {worst} the highest ({_loss(b, worst)})"
    )


def _loss(b: FrequencyBin, label: str) -> str:
    text = f"{b.loss[label]:.2f} nats"
    if label not in b.interval:
        return text
    low, high = b.interval[label]
    return f"{text}, {low:.2f} to {high:.2f}"


def _chance(study: Study) -> str:
    """What the intervals cover."""
    if not study.differences:
        return "The text is too short or has too few sources for intervals: cannot tell."
    pairs = len(study.differences)
    text = (
        f"Intervals are 95 % for each comparison by itself; of {pairs} pairs that do not differ, "
        f"{max(1, round(pairs / 20))} or so would seem to."
        if pairs > 1
        else "Intervals are 95 %."
    )
    if missing := math.comb(len(study.finished), 2) - pairs:
        text += (
            f" {missing} of {pairs + missing} pairs have no interval: their difference has one "
            "value in one part of the text and another in the rest, too few sources to tell."
        )
    if len(study.blocks) < FEW:
        text += f" With only {len(study.blocks)} blocks of text they are wide and rough."
    seeds = {sum(bool(member.scores) for member in row.members) for row in study.finished}
    if min(seeds) > 1:
        return (
            f"{text} They cover the choice of the text and, with {min(seeds)} seeds a model, the "
            "randomness of training."
        )
    return (
        f"{text} They cover the choice of the text alone: "
        + ("every model was" if max(seeds) == 1 else "some models were")
        + " trained with one seed, and another seed may change the order of models that are close."
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
    if any(column.title.endswith("known words") for column in columns(study)):
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
    return (
        f"The paper's numbers are of {DATASETS[papers_dataset(study)]}; ours are the change of the "
        f"{study.headline_name}, or of the loss in nats, with 95 % intervals. Every pair of models "
        "is compared, the better one of the paper first; rare words are those that training has "
        f"{RARE.replace('-', ' to ')} times. In short, {summary(claims(study))}."
        + (
            ""
            if all(pair.has_all_seeds for pair in study.differences)
            else " A verdict is on these very models, trained with one seed: where the difference "
            "is small, other seeds may turn it."
        )
    )
