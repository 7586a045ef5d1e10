"""`zipflm rescore`: add a model's score to n-best lists, tune the weights, and sort the lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from zipflm.data.text import shown
from zipflm.evaluation.progress import progress_label, report_progress
from zipflm.language.files import check_destination, destination
from zipflm.language.model import load
from zipflm.language.nbest import (
    TOTAL,
    WORDS,
    Entry,
    Format,
    Kaldi,
    format_score,
    open_format,
    read_lists,
    read_references,
)
from zipflm.language.weights import (
    check_name,
    check_names,
    complete_weights,
    format_weights,
    import_levenshtein,
    tune,
)
from zipflm.messages import unquoted

_TEXTS_PER_GROUP = 1_024
"""Number of texts to score at a time."""

Lists = Sequence[Sequence[Entry]]
Scorer = Callable[[Sequence[str]], Sequence[float]]
"""Computes ln p of each text, including the `</s>` at its end. Texts can be empty."""


def rescore_file(
    file: str,
    load_scorer: Callable[[], Scorer],
    *,
    say: Callable[[str], None],
    format: str | None = None,
    weights: Mapping[str, float],
    reference: str | None = None,
    tuned: Sequence[str] = (),
    scores: Mapping[str, str] | None = None,
    costs: Mapping[str, str] | None = None,
    name: str = "lm",
    out: str | None = None,
    scores_out: str | None = None,
    one_best: bool = False,
) -> None:
    """Add a model's score to n-best lists and sort them.

    All input is read and checked before `load_scorer` loads the model. `say` is called with
    messages. `weights` are those set by the user. With a file of reference transcripts, the weights
    `tuned` are tuned; by default those of the model's score and the number of words, unless they
    are in `weights`. For Kaldi, `scores` and `costs` map score names to files, and `scores_out` is
    an output file with the lines `hypothesis lm total`. `name` is the name of the model's score.
    """
    if tuned and reference is None:
        raise ValueError("--tune: needs --reference with the transcripts")
    check_name(name)
    inputs = [file, *filter(None, [reference]), *(scores or {}).values(), *(costs or {}).values()]
    check_destination("--out", out, inputs)
    check_destination("--scores-out", scores_out, inputs)
    if out and scores_out and os.path.realpath(out) == os.path.realpath(scores_out):
        raise ValueError(f"--scores-out {scores_out}: same file as --out; choose another file")
    chosen_format = open_format(file, format, scores, costs)
    if scores_out is not None and not isinstance(chosen_format, Kaldi):
        raise ValueError("--scores-out: only for --format kaldi; leave it out")
    lists: Lists = read_lists(file, chosen_format)
    references: dict[str, list[str]] = {}
    names: Sequence[str] = ()
    if reference is not None:
        names = tuned or [each for each in (name, WORDS) if each not in weights]
        check_names(names, weights)
        import_levenshtein()  # fail before the model is loaded
        references = read_references(reference, chosen_format)
        _check_references(reference, references, lists)
    # Weights to tune start from 1, not 0, so that every entry must have these scores.
    start = {**weights, **dict.fromkeys(names, 1.0)}
    used: Mapping[str, float] = complete_weights(start, lists[0][0].scores, name)
    _check_scores(file, lists, used, name)
    scorer = load_scorer()
    listed = ", ".join(each for each in used if each not in (name, WORDS)) or "none"
    ending = "" if names else f"; weights {format_weights(used)}"
    say(f"scores in the list: {listed}{ending}")
    lists = add_scores(lists, scorer, name)
    if names:
        tuning = tune(lists, references, used, names, lm=name, given=weights)
        say(tuning.as_text())
        used = tuning.weights
    _write_lists(chosen_format, lists, used, name, out, scores_out, one_best=one_best)


def model_scorer(
    run: str,
    *,
    checkpoint: str | None,
    device: str | None,
    dtype: str,
    memory: Sequence[str] = (),
) -> Scorer:
    """Load a run and return its scorer. `memory` is as in `zipflm.load`."""
    lm = load(run, checkpoint=checkpoint, device=device, dtype=dtype, memory=memory)

    def log_probs(texts: Sequence[str]) -> list[float]:
        nll = lm.engine.nll([lm.reader.line(text).ids for text in texts])
        return [-float(values.sum(dtype=np.float64)) for values in nll]

    return log_probs


def _check_references(name: str, references: Mapping[str, list[str]], lists: Lists) -> None:
    for entries in lists:
        if entries[0].utterance not in references:
            raise ValueError(
                f"--reference {name}: no reference for utterance "
                f"{unquoted(entries[0].utterance)}; add it, or check that both files have the same "
                "ids"
            )


def _check_scores(file: str, lists: Lists, weights: Mapping[str, float], lm: str) -> None:
    needed = [name for name, weight in weights.items() if weight and name not in (lm, WORDS)]
    for entries in lists:
        for entry in entries:
            for name in needed:
                if name not in entry.scores:
                    raise ValueError(
                        f"{shown(file)}: line {entry.line}: has no score {unquoted(name)}; add it, "
                        "or set its weight to 0"
                    )


def add_scores(lists: Lists, scorer: Scorer, lm: str) -> Lists:
    """Add the model's score `lm` and the number of words to the scores of every entry."""
    # Score each text once: some hypotheses differ only in alignments or times.
    texts = list(dict.fromkeys(_text(entry) for entries in lists for entry in entries))
    log_probs: dict[str, float] = {}
    for first in range(0, len(texts), _TEXTS_PER_GROUP):
        group = texts[first : first + _TEXTS_PER_GROUP]
        log_probs |= zip(group, scorer(group), strict=True)
        with progress_label("rescoring"):
            report_progress(len(group), len(texts))

    def scored(entry: Entry) -> Entry:
        new = {lm: log_probs[_text(entry)], WORDS: float(len(entry.words))}
        return replace(entry, scores={**entry.scores, **new})

    return [[*map(scored, entries)] for entries in lists]


def _text(entry: Entry) -> str:
    return " ".join(entry.words)


def rank_hypotheses(
    utterance: Sequence[Entry], weights: Mapping[str, float]
) -> list[tuple[Entry, float]]:
    """Return the hypotheses with their totals, best first. Ties keep the order of the list."""
    used = {name: weight for name, weight in weights.items() if weight}
    totals = [
        (entry, sum((weight * entry.scores[name] for name, weight in used.items()), start=0.0))
        for entry in utterance
    ]
    return sorted(totals, key=lambda pair: -pair[1])


def _write_lists(
    format: Format,
    lists: Lists,
    weights: Mapping[str, float],
    lm: str,
    out: str | None,
    scores_out: str | None,
    *,
    one_best: bool,
) -> None:
    """Write the hypotheses of each utterance, best first, or only the best one."""
    with ExitStack() as files:
        file = files.enter_context(destination(out))
        scores_file = None if scores_out is None else files.enter_context(destination(scores_out))
        if not one_best and (header := format.format_header((lm, TOTAL))):
            file.write(f"{header}\n")
        for entries in lists:
            order = rank_hypotheses(entries, weights)
            if one_best:
                file.write(f"{format.format_best(order[0][0])}\n")
            for entry, total in order:
                new = {lm: entry.scores[lm], TOTAL: total}
                if not one_best:
                    file.write(f"{format.format_line(entry, new)}\n")
                if scores_file is not None:
                    numbers = " ".join(map(format_score, new.values()))
                    scores_file.write(f"{entry.source} {numbers}\n")
