"""`zipflm rescore`: rescore files of n-best lists with given or tuned weights."""

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
    format_weights,
    open_lists,
    rescore,
    write,
)
from zipflm.language.tuning import Development, check_names, read_development, tune_on


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
    results: Results


def rescore_file(
    nbest: str,
    options: RescoreOptions,
    scorer: Callable[[], HypothesisScorer],
    *,
    say: Callable[[str], None],
) -> None:
    """Add a model's score to n-best lists and sort them.

    The input is checked before `scorer` loads the model. `say` is called with messages.
    """
    lists = _open(nbest, options)
    model = scorer()
    if isinstance(lists, OpenLists):
        say(f"{_scores_of(lists)}; weights {format_weights(lists.weights)}")
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
    lm = load(run, checkpoint=checkpoint, device=device, dtype=dtype, memory=memory)
    return PrefixSharingScorer(lm.engine, lambda text: lm.reader.line(text).ids)


def _open(nbest: str, options: RescoreOptions) -> OpenLists | Development:
    inputs = [nbest, options.reference, *options.scores.values(), *options.costs.values()]
    if inputs.count("-") > 1:
        raise ValueError("-: standard input can only be used once; use files for the others")
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
            raise ValueError("--tune: needs --reference with the transcripts")
        check_names(options.tune, options.weights)
    if options.results.scores_out is not None and source.format_name != "kaldi":
        raise ValueError("--scores-out: only for --format kaldi; leave it out")
    check_destination("--out", options.results.out, inputs)
    check_destination("--scores-out", options.results.scores_out, inputs)
    if options.reference is None:
        return open_lists(source, options.weights, options.name)
    names = options.tune or None
    return read_development(source, options.weights, options.reference, names, lm=options.name)


def _scores_of(lists: OpenLists) -> str:
    names = [name for name in lists.weights if name not in (lists.lm, WORDS)]
    return f"scores in the list: {', '.join(names) or 'none'}"
