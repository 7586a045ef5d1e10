"""`zipflm rescore`: n-best lists and their scores from files, with given or tuned weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zipflm.language.files import check_destination
from zipflm.language.model import load
from zipflm.language.nbest import WORDS, Entry, NBest
from zipflm.language.rescoring import (
    HypothesisScorer,
    OpenLists,
    PrefixSharingScorer,
    Results,
    check_name,
    open_lists,
    rescore,
    write,
    written_weights,
)
from zipflm.language.tuning import Development, check_names, read_development, tune_on

Report = Callable[[str, int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class RescoreOptions:
    """What `zipflm rescore` was asked for."""

    format: str | None = None
    weights: Mapping[str, float]
    reference: str | None = None
    tune: Sequence[str] = ()
    scores: Mapping[str, str]
    """Files of scores of the hypotheses, by name."""
    costs: Mapping[str, str]
    """The same with the other sign."""
    encoding: str
    name: str
    """Of the run's score."""
    results: Results


def rescore_file(
    nbest: str,
    options: RescoreOptions,
    scorer: Callable[[], HypothesisScorer],
    *,
    say: Callable[[str], None],
    report: Report,
) -> None:
    """Add a run's score to n-best lists and sort them again.

    All that can be wrong without the model is found before `scorer` loads it. `say` takes lines for
    people, `report` the number of hypotheses that were scored and their total.
    """
    lists = _opened(nbest, options)
    if isinstance(lists, Development):
        total = sum(map(len, lists.utterances))
        model = scorer()
        say(_scores_of(lists.lists))
        counted = _counted(lists.utterances, lambda number: report("rescoring", number, total))
        found, utterances = tune_on(replace(lists, utterances=counted), model)
        say(found.as_text())
        source = lists.lists.nbest
        write(source, utterances, found.weights, lm=options.name, results=options.results)
        return
    model, lines = scorer(), _number_of_lines(nbest)
    say(f"{_scores_of(lists)}; weights {written_weights(lists.weights)}")
    watched = _counted(lists.utterances, lambda number: report("rescoring", number, lines))
    rescore(replace(lists, utterances=watched), model, options.results)


def run_scorer(
    run: str, *, checkpoint: str | None, device: str | None, dtype: str
) -> HypothesisScorer:
    """A run as rescoring needs it."""
    lm = load(run, checkpoint=checkpoint, device=device, dtype=dtype)
    return PrefixSharingScorer(lm.engine, lambda text: lm.reader.line(text).ids)


def _opened(nbest: str, options: RescoreOptions) -> OpenLists | Development:
    """The lists, with references in memory if weights are tuned."""
    read = [nbest, options.reference, *options.scores.values(), *options.costs.values()]
    if read.count("-") > 1:
        raise ValueError("standard input can be read once only; give files for the others")
    source = NBest(
        nbest,
        options.format,
        scores=options.scores,
        costs=options.costs,
        encoding=options.encoding,
    )
    check_name(options.name)
    if options.tune:
        if options.reference is None:
            raise ValueError("--tune: needs --reference with the words that were said")
        check_names(options.tune, options.weights)
    if options.results.scores_out is not None and source.format_name != "kaldi":
        raise ValueError(f"--scores-out: a list of --format {source.format_name} holds its scores")
    check_destination("--out", options.results.out, read)
    check_destination("--scores-out", options.results.scores_out, read)
    if options.reference is None:
        return open_lists(source, options.weights, options.name)
    names = options.tune or None
    return read_development(source, options.weights, options.reference, names, lm=options.name)


def _counted(
    utterances: Iterable[list[Entry]], report: Callable[[int], None]
) -> Iterator[list[Entry]]:
    """The same utterances; the number of hypotheses of one is reported when the next is read."""
    for entries in utterances:
        yield entries
        report(len(entries))


def _scores_of(lists: OpenLists) -> str:
    """The names of a list's own scores, which may be in files of their own."""
    names = [name for name in lists.weights if name not in (lists.lm, WORDS)]
    return f"scores of the list: {', '.join(names) or 'none'}"


def _number_of_lines(name: str) -> int | None:
    """Of a plain file, which is about its number of hypotheses; None for others."""
    if not os.path.isfile(name) or name.endswith((".gz", ".bz2", ".xz", ".zst")):
        return None
    with open(name, "rb") as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
