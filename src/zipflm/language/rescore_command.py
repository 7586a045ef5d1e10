"""`zipflm rescore`: n-best lists and their scores from files, with given or tuned weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zipflm.language.files import check_destination
from zipflm.language.model import load
from zipflm.language.nbest import WORDS, NBest
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
) -> None:
    """Add a run's score to n-best lists and sort them again.

    All that can be wrong without the model is found before `scorer` loads it. `say` takes lines for
    people.
    """
    lists = _opened(nbest, options)
    model = scorer()
    if isinstance(lists, OpenLists):
        say(f"{_scores_of(lists)}; weights {written_weights(lists.weights)}")
        rescore(lists, model, options.results)
        return
    say(_scores_of(lists.lists))
    found, utterances = tune_on(lists, model)
    say(found.as_text())
    write(lists.lists.nbest, utterances, found.weights, lm=options.name, results=options.results)


def run_scorer(
    run: str,
    *,
    checkpoint: str | None,
    device: str | None,
    dtype: str,
    memory: Sequence[str] = (),
) -> HypothesisScorer:
    """A run as rescoring needs it."""
    lm = load(run, checkpoint=checkpoint, device=device, dtype=dtype, memory=memory)
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


def _scores_of(lists: OpenLists) -> str:
    """The names of a list's own scores, which may be in files of their own."""
    names = [name for name in lists.weights if name not in (lists.lm, WORDS)]
    return f"scores of the list: {', '.join(names) or 'none'}"
