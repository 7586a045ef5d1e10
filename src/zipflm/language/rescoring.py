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
from zipflm.language.tuning import check_names, levenshtein, tune
from zipflm.language.weights import check_name, complete_weights, format_weights
from zipflm.messages import unquoted

_HYPOTHESES_PER_GROUP = 1_024

Scorer = Callable[[Sequence[str]], Sequence[float]]
"""Returns log p in nats of each text, including `</s>`. Texts can be empty."""


@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """Options of `zipflm rescore`."""

    format: str | None = None
    weights: Mapping[str, float]
    reference: str | None = None
    tune: Sequence[str] = ()
    scores: Mapping[str, str]
    """Files with a score per hypothesis, by name."""
    costs: Mapping[str, str]
    """Files with a cost per hypothesis, by name."""
    encoding: str
    name: str
    """Name of the model's score."""
    out: str | None = None
    """Output file; stdout by default."""
    scores_out: str | None = None
    """For Kaldi: a file of lines `hypothesis lm total`."""
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

    The input is checked before `load_scorer` loads the model. `say` is called with messages.
    """
    nbest = NBest(
        file, options.format, scores=options.scores, costs=options.costs, encoding=options.encoding
    )
    _check_files(nbest, options)
    check_name(options.name)
    if options.reference is None:
        weights, utterances = open_lists(nbest, options.weights, options.name)
        scorer = load_scorer()
        say(f"{_scores_of(weights, options)}; weights {format_weights(weights)}")
        write(nbest, scored(utterances, scorer, options.name, nbest.num_lines()), weights, options)
        return
    names = options.tune or [n for n in (options.name, WORDS) if n not in options.weights]
    check_names(names, options.weights)
    levenshtein()  # fail before the model is loaded
    references = read_references(options.reference, nbest.format_name, nbest.encoding)
    # A weight other than 0 requires their scores in every entry.
    start = {**options.weights, **dict.fromkeys(names, 1.0)}
    weights, utterances = open_lists(nbest, start, options.name)
    lists = list(utterances)
    _check_references(options.reference, references, lists)
    scorer = load_scorer()
    say(_scores_of(weights, options))
    lists = list(scored(lists, scorer, options.name, sum(map(len, lists))))
    tuning = tune(lists, references, weights, names, lm=options.name, given=options.weights)
    say(tuning.as_text())
    write(nbest, lists, tuning.weights, options)


def model_scorer(
    run: str,
    *,
    checkpoint: str | None,
    device: str | None,
    dtype: str,
    memory: Sequence[str] = (),
) -> Scorer:
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
                f"{unquoted(entries[0].utterance)}; write an id and words on each line, or for "
                "moses only the words, in the order of the ids from 0"
            )


def _scores_of(weights: Mapping[str, float], options: RescoreOptions) -> str:
    names = [name for name in weights if name not in (options.name, WORDS)]
    return f"scores in the list: {', '.join(names) or 'none'}"


def open_lists(
    nbest: NBest, given: Mapping[str, float], lm: str = "lm"
) -> tuple[dict[str, float], Iterator[list[Entry]]]:
    """Return the weights of all scores, and the utterances.

    The utterances raise ValueError with the line number if an entry lacks a weighted score.
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


def scored(
    utterances: Iterable[list[Entry]], scorer: Scorer, lm: str, total: int | None = None
) -> Iterator[list[Entry]]:
    """Add the score `lm` and the number of words to the scores of every entry.

    `total` is the number of hypotheses, for progress.
    """
    for group in _groups(utterances):
        # Score each text once: some hypotheses only differ in alignment or times.
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


def ranked(utterance: Sequence[Entry], weights: Mapping[str, float]) -> list[tuple[Entry, float]]:
    """Return the hypotheses with their totals, best first. Ties keep the order of the list."""
    used = {name: weight for name, weight in weights.items() if weight}
    totals = [
        (entry, sum((weight * entry.scores[name] for name, weight in used.items()), start=0.0))
        for entry in utterance
    ]
    return sorted(totals, key=lambda pair: -pair[1])


def write(
    nbest: NBest,
    utterances: Iterable[Sequence[Entry]],
    weights: Mapping[str, float],
    options: RescoreOptions,
) -> None:
    """Write utterances, best hypothesis first."""
    format, lm = nbest.format, options.name
    with ExitStack() as files:
        out = files.enter_context(destination(options.out))
        scores_out = None
        if options.scores_out is not None:
            scores_out = files.enter_context(destination(options.scores_out))
        if not options.one_best and (header := format.header((lm, TOTAL))):
            out.write(f"{header}\n")
        for utterance in utterances:
            order = ranked(utterance, weights)
            if options.one_best:
                out.write(f"{format.best(order[0][0])}\n")
            for entry, total in order:
                new = {lm: entry.scores[lm], TOTAL: total}
                if not options.one_best:
                    out.write(f"{format.line(entry, new)}\n")
                if scores_out is not None:
                    numbers = " ".join(map(format_score, new.values()))
                    scores_out.write(f"{entry.source} {numbers}\n")
