"""A study from its members: means over seeds, intervals, bins and lists of words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np

from zipflm.data.vocabulary import UNKNOWN
from zipflm.evaluation.protocol import ScoringProtocol
from zipflm.studies.bins import (
    BIN_NAMES,
    RARE,
    FloatArray,
    IntArray,
    bin_indices,
    loss_by_bin,
    previous_words,
)
from zipflm.studies.paper import comparison_row, setting_row
from zipflm.studies.statistics import Estimate, Interval, Sample
from zipflm.studies.study import (
    CurvePoint,
    Difference,
    Member,
    Row,
    ScoredText,
    SplitScore,
    Study,
    Summary,
    units_of,
)
from zipflm.studies.word_lists import word_lists
from zipflm.units import LARGEST_LOSS

REFERENCE = "ADP-T"


def build(
    members: Sequence[Member],
    text: ScoredText,
    *,
    title: str,
    dataset: str,
    facts: Mapping[str, str],
) -> Study:
    """The tables of `members`, whose `nll` belong to the words of `text`."""
    labels = list(dict.fromkeys(member.label for member in members))
    rows = tuple(_row([m for m in members if m.label == label], dataset) for label in labels)
    by_seed = {row.label: nll for row in rows if (nll := _nll_of(row)) is not None}
    losses = {label: nll.mean(axis=0) for label, nll in by_seed.items()}
    word_ids, counts = np.asarray(text.word_ids), text.vocabulary.counts
    previous = previous_words(word_ids)
    reference = REFERENCE if REFERENCE in losses else next(iter(losses), "")
    sample = Sample(word_ids, text.line_starts, text.vocabulary, by_seed, reference)
    is_known = word_ids != UNKNOWN
    everything = sample.estimates(np.ones(len(word_ids), dtype=bool))
    known = sample.estimates(is_known) if is_known.any() else {}
    is_mixed = not is_known.all() and len(units_of(rows, text.split)) > 1
    return Study(
        title=title,
        dataset=dataset,
        split=text.split,
        reference=reference,
        rows=rows,
        word_bins=sample.with_intervals(loss_by_bin(word_ids, counts, losses), word_ids),
        previous_bins=sample.with_intervals(
            loss_by_bin(word_ids, counts, losses, by=previous), previous
        ),
        words={
            label: word_lists(word_ids, counts, nll, losses[reference], sample.blocks.of_word)
            for label, nll in losses.items()
            if label != reference
        },
        vocabulary=text.vocabulary,
        facts={**facts, **_trained_with(members)},
        blocks=sample.blocks,
        intervals=_perplexities(everything),
        known_intervals=_perplexities(known),
        differences=_differences(known if is_mixed else everything),
        rare=_on_rare(sample, word_ids, counts),
        after_rare=_on_rare(sample, previous, counts),
    )


def _trained_with(members: Sequence[Member]) -> dict[str, str]:
    """Device, packages and commit of the trainings; of every one where they differ."""
    texts = [
        ", ".join(
            ([one.device] if one.device else [])
            + [f"{name} {one.packages[name]}" for name in ("torch", "zipflm")]
            + ([f"commit {one.commit[:12]}"] if one.commit else [])
        )
        for one in (member.versions.latest for member in members if member.versions)
    ]
    return {"trained with": "; ".join(dict.fromkeys(texts))} if texts else {}


def _perplexities(estimates: Mapping[str, Estimate]) -> dict[str, Interval]:
    intervals = {label: estimate.interval for label, estimate in estimates.items()}
    return {label: i.as_perplexity for label, i in intervals.items() if i is not None}


def _differences(estimates: Mapping[str, Estimate]) -> tuple[Difference, ...]:
    found = []
    for (label, ours), (other, theirs) in combinations(estimates.items(), 2):
        difference = ours - theirs
        if (nats := difference.interval) is not None:
            found.append(
                Difference(
                    label=label, other=other, nats=nats, has_all_seeds=difference.has_all_seeds
                )
            )
    return tuple(found)


def _on_rare(sample: Sample, groups: IntArray, counts: IntArray) -> tuple[Difference, ...]:
    """Differences on the words whose entry of `groups` is rare."""
    is_rare = bin_indices(groups, counts) == BIN_NAMES.index(RARE)
    return _differences(sample.estimates(is_rare)) if is_rare.any() else ()


def split_score(nll: FloatArray, word_ids: IntArray, protocol: ScoringProtocol) -> SplitScore:
    """The mean loss of a split, with and without unknown words.

    ValueError if it is so high that there is no perplexity to compare.
    """
    known = word_ids != UNKNOWN
    known_loss = float(np.mean(nll[known], dtype=np.float64)) if known.any() else math.nan
    loss = float(np.mean(nll, dtype=np.float64))
    if max(loss, known_loss) >= LARGEST_LOSS:
        raise ValueError(
            f"a mean loss of {loss:.3g} nats per word, an infinite perplexity: its training "
            "diverged; lower the learning rate"
        )
    return SplitScore(loss=loss, known_loss=known_loss, protocol=protocol)


def _row(members: Sequence[Member], dataset: str) -> Row:
    good = [member for member in members if member.scores]
    splits = list(dict.fromkeys(split for member in good for split in member.scores))
    perplexities = {s: Summary.of_losses([m.scores[s].loss for m in good]) for s in splits}
    known = {s: Summary.of_losses([m.scores[s].known_loss for m in good]) for s in splits}
    rates = [m.tokens_per_second for m in good if m.tokens_per_second is not None]
    compiled = [m.compiled for m in good if m.compiled is not None]
    first = members[0]
    find = comparison_row if first.label == first.factorization else setting_row
    return Row(
        label=first.label,
        members=tuple(members),
        perplexity={split: value for split, value in perplexities.items() if value},
        known_perplexity={split: value for split, value in known.items() if value},
        seen=next((m.seen for m in good if m.seen), None),
        seconds=Summary.of([m.seconds for m in good if m.seconds is not None]),
        cpu_seconds=Summary.of([m.cpu_seconds for m in good if m.cpu_seconds is not None]),
        compile_seconds=Summary.of(
            [m.compile_seconds for m in good if m.compile_seconds is not None]
        ),
        tokens_per_second=Summary.of(rates),
        memory=max((m.memory for m in good if m.memory is not None), default=None),
        compiled=all(compiled) if compiled else None,
        curve=_mean_curve([member.curve for member in members if member.curve]),
        paper=find(dataset, first.label),
    )


def _nll_of(row: Row) -> FloatArray | None:
    """[seeds, words]; None without a result."""
    arrays = [m.nll for m in row.members if m.nll is not None]
    return np.stack(arrays).astype(np.float64, copy=False) if arrays else None


def _mean_curve(curves: Sequence[tuple[CurvePoint, ...]]) -> tuple[CurvePoint, ...]:
    """The mean over the seeds, at the updates that all of them have."""
    if not curves:
        return ()
    by_update = [{point.update: point for point in curve} for curve in curves]
    shared = [point.update for point in curves[0] if all(point.update in c for c in by_update)]
    return tuple(_mean_point([curve[update] for curve in by_update]) for update in shared)


def _mean_point(points: Sequence[CurvePoint]) -> CurvePoint:
    losses = [point.loss for point in points if point.loss is not None]
    valid = [point.valid_loss for point in points if point.valid_loss is not None]
    return CurvePoint(
        update=points[0].update,
        seconds=fmean(point.seconds for point in points),
        loss=fmean(losses) if len(losses) == len(points) else None,
        valid_loss=fmean(valid) if len(valid) == len(points) else None,
    )
