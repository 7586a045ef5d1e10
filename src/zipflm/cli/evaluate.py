"""Commands that measure: perplexities, comparisons, reports."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zipflm.cli.app import (
    INTERRUPTED,
    MEMBER_FAILED,
    STALL_SECONDS,
    Bands,
    Block,
    Checkpoint,
    Context,
    Device,
    Dtype,
    Encoding,
    Errors,
    Json,
    Memory,
    Recipe,
    Seeds,
    Size,
    StallSeconds,
    TailDropout,
    command,
    complain,
    is_first_process,
    numbers,
    parts,
    removing_what_is_unfinished,
    say,
    showing_progress,
    tell,
)

if TYPE_CHECKING:
    from zipflm.studies.compare import FinishedStudy


@command(
    "zipflm evaluate runs/first --data data/words",
    "zipflm evaluate runs/first --data data/words --split valid --checkpoint best --json",
    "zipflm evaluate runs/first --text article.txt --block 256 --context 128",
    "zipflm evaluate first.tsv second.tsv --weights 0.6,0.4 --out both.tsv",
)
def evaluate(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="A run folder, or one of its checkpoints; or two or more files of zipflm score "
            "--per word over the same text, whose probabilities are averaged."
        ),
    ],
    *,
    data: Annotated[str | None, typer.Option(help="The data folder to score.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Of the data folder: train, valid or test (if not given).")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Instead of a data folder: a text, or - for stdin.")
    ] = None,
    encoding: Encoding = "utf-8",
    errors: Errors = "strict",
    block: Block = None,
    context: Context = None,
    break_mode: Annotated[
        str | None,
        typer.Option(
            "--break",
            help="Cut at: none, complete (whole lines), sentence (lines) or stream (none, and "
            "recurrent decoders carry their state on); the run's own unless given.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        Size("Maximum number of tokens in one pass; by the device unless given."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Of several files: one weight per file, e.g. 0.6,0.4, or fit: those under which "
            "this text is most probable; equal unless given."
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Of several files: write the averaged scores too, in the format of the first."
        ),
    ] = None,
    memory: Memory = None,
    device: Device = None,
    dtype: Dtype = "float32",
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> None:
    """Perplexity of a run on a split or a text, with any block and context; or of several runs as
    one, from their scores.

    With torchrun, each process scores a share of the text.
    """
    from zipflm import api
    from zipflm.training import distributed

    if len(runs) > 1:
        of_runs = {"--data": data, "--split": split, "--text": text, "--checkpoint": checkpoint}
        _average(runs, weights, out, as_json, of_runs)
        return
    if weights or out:
        raise ValueError("--weights, --out: of several files of scores; leave them out")
    with distributed.started(device), removing_what_is_unfinished(), showing_progress():
        found = api.evaluate(
            runs[0],
            data=data,
            split=split,
            text=text,
            encoding=encoding,
            errors=errors,
            block=block,
            context=context,
            break_mode=break_mode,
            batch_tokens=batch_tokens,
            device=device,
            dtype=dtype,
            checkpoint=checkpoint,
            memory=memory or (),
        )
    if is_first_process():
        say(found.as_json() if as_json else found.as_text())


def _average(
    files: list[str],
    weights: str | None,
    out: str | None,
    as_json: bool,
    of_runs: dict[str, str | None],
) -> None:
    """Perplexity of several files of scores, their probabilities averaged word by word."""
    from zipflm.data.text import STDIN
    from zipflm.language.ensemble import ensemble
    from zipflm.language.files import check_destination

    given = next((option for option, value in of_runs.items() if value is not None), None)
    folder = next(filter(os.path.isdir, files), None)
    if given or folder:
        raise ValueError(
            f"{given or folder}: evaluate one run at a time; to average runs, score the same text "
            "with each (zipflm score RUN TEXT > FILE) and evaluate these files"
        )
    check_destination("--out", out, files)
    fit = weights == "fit"
    shares = None if weights is None or fit else numbers("--weights", [weights], float)
    with removing_what_is_unfinished():
        found = ensemble(files, shares, best_weights=fit, out=out)
        # The scores themselves may go to standard output.
        (tell if out == STDIN else say)(found.as_json() if as_json else found.as_text())


@command(
    "zipflm compare --data data/words --preset demo --out study",
    "zipflm compare --data data/words --preset tiny --out small --factorizations ADP-T,SM",
    "zipflm compare --data data/words --preset tiny --out seeds --seeds 3 decoder.num_layers=1",
)
def compare(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to every member, e.g. decoder.num_layers=8.")
    ] = None,
    *,
    data: Annotated[str, typer.Option(help="The data folder; sub-words are in its bpe/.")],
    preset: Annotated[
        str,
        typer.Option(
            help="What to train: all models of a dataset, e.g. demo or billion-word/large, or one, "
            "e.g. demo/SM; zipflm info lists them."
        ),
    ],
    out: Annotated[str, typer.Option(help="The folder of the study, new or to go on with.")],
    factorizations: Annotated[
        list[str] | None,
        typer.Option(help="Some models of the dataset, e.g. ADP-T,SM; all unless given."),
    ] = None,
    seeds: Seeds = 1,
    recipe: Recipe = "paper",
    bands: Bands = None,
    tail_dropout: TailDropout = None,
    decoders: Annotated[
        list[str] | None,
        typer.Option(help="Compare these instead of factorizations: transformer,gcnn,lstm,qrnn."),
    ] = None,
    equal: Annotated[
        str, typer.Option(help="Held equal: updates (as in the paper), text or seconds.")
    ] = "updates",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="A field and values, e.g. training.optimizer.lr=1e-3,3e-3: every member takes the "
            "best on the valid set; can be repeated."
        ),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            help="Score every member with a cache as well, e.g. cache:2000, in a row of its own; "
            "without it unless given."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be trained and about how long it takes."),
    ] = False,
    device: Device = None,
    stall_seconds: StallSeconds = STALL_SECONDS,
    as_json: Json = False,
) -> None:
    """Train the paper's factorizations on your text and report where each one wins.

    Exit status 1 if a member has no result, 130 if a signal stopped it.
    """
    from zipflm import api
    from zipflm.studies.compare import dry_run as show
    from zipflm.studies.plan import Request

    given: dict[str, Any] = {
        "data": Path(data),
        "preset": preset,
        "out": Path(out),
        "factorizations": parts(factorizations),
        "seeds": seeds,
        "recipe": recipe,
        "overrides": tuple(api.assignments(overrides or [])),
        "bands": parts(bands),
        "tail_dropout": numbers("--tail-dropout", tail_dropout, float),
        "decoders": parts(decoders),
        "equal": equal,
        "grid": tuple(grid or ()),
        "memory": tuple(memory or ()),
    }
    if dry_run:
        show(Request(**given), device=device)
        return
    with _progress_aside(as_json):
        finished = api.compare(**given, device=device, stall_seconds=stall_seconds)
    _conclude(finished, as_json)


@command(
    "zipflm report runs/a runs/b --data data/words --out report",
    "zipflm report runs/a --data data/words --out contexts --context-sizes 0,256",
    "zipflm report study --data data/words --out drawn-again",
    "zipflm report runs/a runs/b --curves curves.svg --x seconds",
)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run folders, or checkpoints in them; or a study, to draw its report again."
        ),
    ],
    *,
    data: Annotated[
        str | None, typer.Option(help="The data folder; sub-words are in its bpe/.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Where to write the report.")] = None,
    curves: Annotated[
        str | None,
        typer.Option(
            help="Draw the runs' training curves into this picture, .png, .svg or .pdf; needs "
            "neither --data nor --out."
        ),
    ] = None,
    x: Annotated[str, typer.Option(help="Of the curves: update, seconds or epoch.")] = "update",
    context_sizes: Annotated[
        list[str] | None,
        typer.Option(help="Also score with this many tokens of context, e.g. 0,480."),
    ] = None,
    block: Block = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Losses by word frequency, figures and word lists of any runs; their training curves."""
    from zipflm import api

    if curves is not None:
        from zipflm.studies.curves import plot

        if is_first_process():
            plot([Path(run) for run in runs], Path(curves), x)
            say(curves)
        if data is None and out is None:
            return
    if data is None or out is None:
        raise ValueError(
            "a report needs --data and --out; training curves alone, --curves with a file"
        )
    with _progress_aside(as_json), showing_progress():
        finished = api.report(
            runs,
            data=data,
            out=out,
            context_sizes=numbers("--context-sizes", context_sizes, int),
            block=block,
            checkpoint=checkpoint,
            device=device,
        )
    _conclude(finished, as_json)


def _progress_aside(as_json: bool) -> AbstractContextManager[object]:
    """Standard output is for the result alone where a program reads it."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _conclude(finished: FinishedStudy, as_json: bool) -> None:
    """The end of a study on the terminal; under torchrun the first process alone speaks."""
    from zipflm.studies.progress import print_table
    from zipflm.studies.report import TABLE

    page = finished.page
    if is_first_process():
        if not as_json:
            print_table(finished.study)
        if page is not None:
            table = page.parent / TABLE
            say(table.read_text(encoding="utf-8") if as_json else f"report: {page}")
        if finished.stopped:
            (complain if as_json else say)(
                "stopped before the end; the same command goes on where it was"
            )
        elif finished.failures:
            reasons = "; ".join(f"{label}: {why}" for label, why in finished.failures.items())
            complain(f"without a result: {reasons}")
    if finished.stopped or finished.failures:
        raise typer.Exit(INTERRUPTED if finished.stopped else MEMBER_FAILED)
