"""Commands that put scores together: of hypotheses with a run's, and of several runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from zipflm.cli.app import (
    Checkpoint,
    Device,
    Dtype,
    Encoding,
    Json,
    Run,
    command,
    numbers,
    parts,
    removing_what_is_unfinished,
    run_comes_first,
    say,
)
from zipflm.messages import lines

if TYPE_CHECKING:
    from zipflm.language.nbest import Entry
    from zipflm.language.rescoring import HypothesisScorer, OpenLists


@command(
    "zipflm rescore runs/first nbest.tsv --weights lm=0.7,words=-0.2 --out rescored.tsv",
    "zipflm rescore runs/first nbest.jsonl --tune references.txt --out tuned.jsonl",
    "zipflm rescore runs/first nbest.txt --format kaldi --costs ac=1.acwts --one-best",
)
def rescore(
    run: Run,
    nbest: Annotated[
        str, typer.Argument(help="N-best lists: a file, also .gz .bz2 .xz .zst, or - for stdin.")
    ],
    *,
    format: Annotated[
        str | None,
        typer.Option(help="kaldi, moses, jsonl or tsv; the last two are known by their ending."),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="Of the run's score, the list's scores and the number of words, e.g. "
            "lm=0.7,words=-0.2. Unless given: lm=1, words=0; total=1 if the list has a total, "
            "else 1 for each of its scores."
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(help="What was really said: choose the weights by word error rate on it."),
    ] = None,
    tune_names: Annotated[
        list[str] | None,
        typer.Option(help="Weights to choose; lm,words as far as --weights lacks them."),
    ] = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(help="For kaldi, files of log-probabilities per hypothesis, e.g. ac=ac.txt."),
    ] = None,
    costs: Annotated[
        list[str] | None,
        typer.Option(help="The same with the other sign, as Kaldi writes them, e.g. ac=1.acwts."),
    ] = None,
    encoding: Encoding = "utf-8",
    name: Annotated[str, typer.Option(help="What the run's score is called.")] = "lm",
    out: Annotated[
        str | None, typer.Option(help="The sorted list goes into this file, not to stdout.")
    ] = None,
    scores_out: Annotated[
        str | None, typer.Option(help="For kaldi: a file of hypothesis, run's score and total.")
    ] = None,
    one_best: Annotated[
        bool, typer.Option("--one-best", help="Write the best hypothesis of each utterance only.")
    ] = False,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Add a run's score to n-best lists and sort them anew, best hypothesis first.

    With --tune the weights are chosen on these lists, and told on stderr.
    """
    from zipflm.data.prepare import progress_bar
    from zipflm.language.files import check_destination
    from zipflm.language.nbest import NBest
    from zipflm.language.rescoring import (
        Results,
        check_name,
        open_lists,
        parse_weights,
        write,
        written_weights,
    )
    from zipflm.language.rescoring import rescore as rescore_lists
    from zipflm.language.tuning import read_development, tune_on

    # All that can be refused without the model comes first: loading it takes a while.
    tables = _files("--scores", scores), _files("--costs", costs)
    run_comes_first(run, [nbest])
    read = [nbest, tune, *tables[0].values(), *tables[1].values()]
    _read_stdin_once(read)
    source = NBest(nbest, format, scores=tables[0], costs=tables[1], encoding=encoding)
    given = parse_weights(",".join(weights)) if weights else {}
    check_name(name)
    names = _names_to_tune(tune, tune_names, given)
    if scores_out is not None and source.format_name != "kaldi":
        raise ValueError(f"--scores-out: a list of --format {source.format_name} holds its scores")
    for option, place in (("--out", out), ("--scores-out", scores_out)):
        check_destination(option, place, read)
    results = Results(out=out, scores_out=scores_out, one_best=one_best)
    # Lines and a bar on one terminal would write over each other.
    to_terminal = out in (None, "-") and sys.stdout.isatty()
    bar = nullcontext(_say_nothing) if to_terminal else progress_bar("hypotheses")
    with removing_what_is_unfinished(), bar as report:
        if tune is None:
            lists = open_lists(source, given, name)
            scorer = _scorer(run, checkpoint, device, dtype)
            _tell(f"{_scores_of(lists)}; weights {written_weights(lists.weights)}")
            total = _number_of_lines(nbest)
            watched = _counted(lists.utterances, lambda number: report("rescoring", number, total))
            rescore_lists(replace(lists, utterances=watched), scorer, results)
            return
        development = read_development(source, given, tune, names, lm=name)
        scorer = _scorer(run, checkpoint, device, dtype)
        _tell(_scores_of(development.lists))
        total = sum(map(len, development.utterances))
        counted = _counted(
            development.utterances, lambda number: report("rescoring", number, total)
        )
        found, utterances = tune_on(replace(development, utterances=counted), scorer)
        _tell(found.as_text())
        write(source, utterances, found.weights, lm=name, results=results)


@command(
    "zipflm ensemble first.tsv second.tsv",
    "zipflm ensemble first.tsv second.tsv --weights 0.6,0.4 --out both.tsv --json",
)
def ensemble(
    files: Annotated[
        list[str],
        typer.Argument(help="Two or more files of zipflm score --per word over the same text."),
    ],
    *,
    weights: Annotated[
        list[str] | None, typer.Option(help="One per file, e.g. 0.6,0.4; equal unless given.")
    ] = None,
    tune_weights: Annotated[
        bool,
        typer.Option("--tune-weights", help="Take the weights that suit this text best, by EM."),
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(help="Write the averaged scores too, in the format of the first file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Perplexity of several runs as one: their probabilities averaged word by word."""
    from zipflm.data.text import STDIN
    from zipflm.language.ensemble import ensemble as average
    from zipflm.language.files import check_destination

    _read_stdin_once(files)
    check_destination("--out", out, files)
    given = numbers("--weights", weights, float) if weights else None
    with removing_what_is_unfinished():
        found = average(files, given, best_weights=tune_weights, out=out)
        # The scores themselves may go to standard output.
        (_tell if out == STDIN else say)(found.as_json() if as_json else found.as_text())


def _say_nothing(what: str, done: int, total: int | None) -> None:
    pass


def _counted(
    utterances: Iterable[list[Entry]], report: Callable[[int], None]
) -> Iterator[list[Entry]]:
    """The same utterances; how many hypotheses one has is reported when the next one is wanted."""
    for entries in utterances:
        yield entries
        report(len(entries))


def _scores_of(lists: OpenLists) -> str:
    """The names of a list's own scores, which may be in files of their own."""
    from zipflm.language.nbest import WORDS

    names = [name for name in lists.weights if name not in (lists.lm, WORDS)]
    return f"scores of the list: {', '.join(names) or 'none'}"


def _number_of_lines(name: str) -> int | None:
    """Of a plain file, which is about its number of hypotheses; None for others."""
    if not os.path.isfile(name) or name.endswith((".gz", ".bz2", ".xz", ".zst")):
        return None
    with open(name, "rb") as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


def _scorer(run: str, checkpoint: str | None, device: str | None, dtype: str) -> HypothesisScorer:
    """A run as rescoring needs it."""
    from zipflm.language.model import load
    from zipflm.language.rescoring import PrefixSharingScorer

    lm = load(run, checkpoint=checkpoint, device=device, dtype=dtype)
    return PrefixSharingScorer(lm.engine, lambda text: lm.reader.line(text).ids)


def _names_to_tune(
    tune: str | None, tune_names: list[str] | None, given: Mapping[str, float]
) -> tuple[str, ...] | None:
    """The weights that are to be chosen; None where the library decides which."""
    from zipflm.language.tuning import check_names

    if not tune_names:
        return None
    if tune is None:
        raise ValueError("--tune-names: needs --tune with what was really said")
    names = parts(tune_names)
    check_names(names, given)
    return names


def _read_stdin_once(names: Iterable[str | None]) -> None:
    if list(names).count("-") > 1:
        raise ValueError("standard input can be read once only; give files for the others")


def _files(option: str, texts: list[str] | None) -> dict[str, str]:
    """`ac=ac.txt,graph=graph.txt` by name."""
    files: dict[str, str] = {}
    for part in parts(texts):
        name, equals, file = part.partition("=")
        if not (equals and name and file) or name in files:
            raise ValueError(
                f"{option} {part}: write a name, = and a file, each name once (ac=ac.txt)"
            )
        files[name] = file
    return files


def _tell(text: str) -> None:
    """Lines for people, where the output is for programs."""
    print(lines(text), file=sys.stderr)
