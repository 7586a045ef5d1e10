"""`zipflm rescore`: add a model's score to n-best lists, tune the weights, and sort the lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from zipflm.data.text import shown
from zipflm.evaluation.progress import progress_label, report_progress
from zipflm.language.files import check_destination, destination
from zipflm.language.model import load
from zipflm.language.nbest import TOTAL, WORDS, Entry, NBest, format_score, read_references
from zipflm.language.tuning import check_names, import_levenshtein, tune
from zipflm.language.weights import check_name, complete_weights, format_weights
from zipflm.messages import unquoted

_HYPOTHESES_PER_GROUP = 1_024
"""Minimum number of hypotheses to score at a time, except in the last group."""

Scorer = Callable[[Sequence[str]], Sequence[float]]
"""Computes ln p of each text, including the `</s>` at its end. Texts can be empty."""


@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """Options of `zipflm rescore`."""

    format: str | None = None
    weights: Mapping[str, float]
    """Weights set by the user, by score name."""
    reference: str | None = None
    """File of reference transcripts, for tuning."""
    tune: Sequence[str] = ()
    """Names of the weights to tune; by default the model's score and the number of words, unless
    they are in `weights`."""
    scores: Mapping[str, str]
    """For Kaldi: files with a score per hypothesis, by score name."""
    costs: Mapping[str, str]
    """For Kaldi: files with a cost (negated score) per hypothesis, by score name."""
    encoding: str
    name: str
    """Name of the model's score."""
    out: str | None = None
    """Output file; stdout by default."""
    scores_out: str | None = None
    """For Kaldi: output file with the lines `hypothesis lm total`."""
    one_best: bool = False
    """Write only the best hypothesis of every utterance."""


def rescore_file(
    file: str,
    options: RescoreOptions,
    load_scorer: Callable[[], Scorer],
    *,
    say: Callable[[str], None],
) -> None:
    """Add a model's score to n-best lists and sort them.

    Options are checked before `load_scorer` loads the model. With references, the lists are read
    and checked before that as well; otherwise they are read while they are scored. `say` is called
    with messages.
    """
    nbest = NBest(
        file, options.format, scores=options.scores, costs=options.costs, encoding=options.encoding
    )
    _check_files(nbest, options)
    check_name(options.name)
    if options.reference is None:
        weights, utterances = open_lists(nbest, options.weights, options.name)
        scorer = load_scorer()
        say(f"{_describe_scores(weights, options)}; weights {format_weights(weights)}")
        utterances = add_scores(utterances, scorer, options.name, nbest.num_lines())
        write_lists(nbest, utterances, weights, options)
        return
    names = options.tune or [n for n in (options.name, WORDS) if n not in options.weights]
    check_names(names, options.weights)
    import_levenshtein()  # fail before the model is loaded
    references = read_references(options.reference, nbest.format_name, nbest.encoding)
    # Start from 1, not 0, so that `open_lists` requires every entry to have these scores.
    start = {**options.weights, **dict.fromkeys(names, 1.0)}
    weights, utterances = open_lists(nbest, start, options.name)
    lists = list(utterances)
    _check_references(options.reference, references, lists)
    scorer = load_scorer()
    say(_describe_scores(weights, options))
    lists = list(add_scores(lists, scorer, options.name, sum(map(len, lists))))
    tuning = tune(lists, references, weights, names, lm=options.name, given=options.weights)
    say(tuning.as_text())
    write_lists(nbest, lists, tuning.weights, options)


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


def _check_files(nbest: NBest, options: RescoreOptions) -> None:
    inputs = [nbest.name, options.reference, *options.scores.values(), *options.costs.values()]
    if inputs.count("-") > 1:
        raise ValueError("-: standard input can only be used once; use files for the others")
    if options.tune and options.reference is None:
        raise ValueError("--tune: needs --reference with the transcripts")
    if options.scores_out is not None and nbest.format_name != "kaldi":
        raise ValueError("--scores-out: only for --format kaldi; leave it out")
    check_destination("--out", options.out, inputs)
    check_destination("--scores-out", options.scores_out, inputs)


def _check_references(
    name: str, references: Mapping[str, list[str]], utterances: Iterable[list[Entry]]
) -> None:
    for entries in utterances:
        if entries[0].utterance not in references:
            raise ValueError(
                f"--reference {name}: no reference for utterance "
                f"{unquoted(entries[0].utterance)}; add it, or check that both files have the same "
                "ids"
            )


def _describe_scores(weights: Mapping[str, float], options: RescoreOptions) -> str:
    names = [name for name in weights if name not in (options.name, WORDS)]
    return f"scores in the list: {', '.join(names) or 'none'}"


def open_lists(
    nbest: NBest, given: Mapping[str, float], lm: str = "lm"
) -> tuple[dict[str, float], Iterator[list[Entry]]]:
    """Return the weights of all scores, and an iterator over the utterances.

    The iterator raises ValueError with the line number if an entry lacks a score whose weight is
    not 0.
    """
    rest = nbest.utterances()
    first = next(rest)
    weights = complete_weights(given, first[0].scores, lm)
    needed = [name for name, weight in weights.items() if weight and name not in (lm, WORDS)]
    return weights, (_check_scores(nbest, entries, needed) for entries in chain([first], rest))


def _check_scores(nbest: NBest, entries: list[Entry], needed: Sequence[str]) -> list[Entry]:
    for entry in entries:
        for name in needed:
            if name not in entry.scores:
                raise ValueError(
                    f"{shown(nbest.name)}: line {entry.line}: has no score {unquoted(name)}; add "
                    "it, or set its weight to 0"
                )
    return entries


def add_scores(
    utterances: Iterable[list[Entry]], scorer: Scorer, lm: str, total: int | None = None
) -> Iterator[list[Entry]]:
    """Add the model's score `lm` and the number of words to the scores of every entry.

    `total` is the number of hypotheses, for the progress bar.
    """
    for group in _groups(utterances):
        # Score each text once: some hypotheses differ only in alignments or times.
        texts = list(dict.fromkeys(_text(entry) for entries in group for entry in entries))
        log_probs = dict(zip(texts, scorer(texts), strict=True))
        for entries in group:
            yield [
                replace(
                    entry,
                    scores={
                        **entry.scores,
                        lm: log_probs[_text(entry)],
                        WORDS: float(len(entry.words)),
                    },
                )
                for entry in entries
            ]
        with progress_label("rescoring"):
            report_progress(sum(map(len, group)), total)


def _text(entry: Entry) -> str:
    return " ".join(entry.words)


def _groups(utterances: Iterable[list[Entry]]) -> Iterator[list[list[Entry]]]:
    group: list[list[Entry]] = []
    for entries in utterances:
        group.append(entries)
        if sum(map(len, group)) >= _HYPOTHESES_PER_GROUP:
            yield group
            group = []
    if group:
        yield group


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


def write_lists(
    nbest: NBest,
    utterances: Iterable[Sequence[Entry]],
    weights: Mapping[str, float],
    options: RescoreOptions,
) -> None:
    """Write the hypotheses of each utterance, best first, or only the best one."""
    format, lm = nbest.format, options.name
    with ExitStack() as files:
        out = files.enter_context(destination(options.out))
        scores_out = None
        if options.scores_out is not None:
            scores_out = files.enter_context(destination(options.scores_out))
        if not options.one_best and (header := format.format_header((lm, TOTAL))):
            out.write(f"{header}\n")
        for utterance in utterances:
            order = rank_hypotheses(utterance, weights)
            if options.one_best:
                out.write(f"{format.format_best(order[0][0])}\n")
            for entry, total in order:
                new = {lm: entry.scores[lm], TOTAL: total}
                if not options.one_best:
                    out.write(f"{format.format_line(entry, new)}\n")
                if scores_out is not None:
                    numbers = " ".join(map(format_score, new.values()))
                    scores_out.write(f"{entry.source} {numbers}\n")
