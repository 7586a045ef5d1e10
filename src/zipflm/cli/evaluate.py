"""`zipflm evaluate`, `compare` and `report`."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

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
    arguments,
    cleanup_on_sigterm,
    command,
    echo,
    echo_stderr,
    is_first_process,
    parse_numbers,
    print_error,
    show_progress,
    split_commas,
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
    ctx: typer.Context,
    runs: Annotated[
        list[str],
        Argument(help="A run folder or checkpoint; or score files from `zipflm score` to average."),
    ],
    *,
    data: Annotated[str | None, Option(help="Data folder to score.")] = None,
    split: Annotated[
        str | None,
        Option(
            help="Split of the data folder to score: train, valid or test.", show_default="test"
        ),
    ] = None,
    text: Annotated[
        str | None, Option(help="Text file to score instead of --data; - for stdin.")
    ] = None,
    encoding: Encoding = "utf-8",
    errors: Errors = "strict",
    block: Block = None,
    context: Context = None,
    break_mode: Annotated[
        str | None,
        Option(
            "--break",
            help="Where to split the text: none (anywhere), complete (between lines), sentence "
            "(one line per block) or stream (anywhere; decoders other than the Transformer keep "
            "their state).",
            show_default="from the run",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None, Size("Maximum number of tokens per batch.", "depends on the device")
    ] = None,
    weights: Annotated[
        str | None,
        Option(
            help="For score files: one weight per file, e.g. 0.6,0.4, or `fit` to find the "
            "weights with the lowest perplexity on this text.",
            show_default="equal",
        ),
    ] = None,
    out: Annotated[
        str | None,
        Option(help="For score files: also write the averaged scores to this file; - for stdout."),
    ] = None,
    memory: Memory = None,
    device: Device = None,
    dtype: Dtype = "float32",
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> None:
    """Compute the perplexity of a run on a data folder or a text, or of averaged score files.

    Score files, one per model, are averaged word by word; they must be of the
    same text. With torchrun, each process scores a part of the text.
    """
    from zipflm import api
    from zipflm.distributed import processes

    if len(runs) > 1:
        _check_score_files(ctx, runs)
        _average(runs, weights, out, as_json)
        return
    if weights or out:
        raise ValueError("--weights, --out: only for several score files; leave them out")
    with processes.started(device), cleanup_on_sigterm(), show_progress():
        scoring = arguments(ctx, "runs", "weights", "out", "as_json")
        result = api.evaluate(runs[0], **scoring)
    if is_first_process():
        echo(result.as_json() if as_json else result.as_text())


def _check_score_files(ctx: typer.Context, files: list[str]) -> None:
    """Raise ValueError for folders, and for options that only apply to runs."""
    if folder := next(filter(os.path.isdir, files), None):
        raise ValueError(
            f"{folder}: evaluate one run at a time; to average runs, score the same text with "
            "each (zipflm score RUN TEXT > FILE) and evaluate the files"
        )
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        is_for_files = param.name in ("runs", "weights", "out", "as_json")
        if source is not None and source.name == "COMMANDLINE" and not is_for_files:
            raise ValueError(f"{param.opts[0]}: not for score files; leave it out")


def _average(files: list[str], weights: str | None, out: str | None, as_json: bool) -> None:
    """Print the perplexity of several score files, averaged word by word."""
    from zipflm.language.ensemble import ensemble
    from zipflm.language.files import check_destination

    check_destination("--out", out, files)
    shares: tuple[float, ...] | Literal["fit"] | None = None
    if weights is not None:
        shares = "fit" if weights == "fit" else parse_numbers("--weights", [weights], float)
    with cleanup_on_sigterm():
        result = ensemble(files, shares, out=out)
        show = echo_stderr if out == "-" else echo  # with --out -, stdout has the scores
        show(result.as_json() if as_json else result.as_text())


@command(
    "zipflm compare --data data/words --preset demo --out study",
    "zipflm compare --data data/words --preset tiny --out small --factorizations ADP-T,SM",
    "zipflm compare --data data/words --preset tiny --out seeds --seeds 3 decoder.num_layers=1",
)
def compare(
    overrides: Annotated[
        list[str] | None,
        Argument(help="Settings to change in every model, e.g. decoder.num_layers=8."),
    ] = None,
    *,
    data: Annotated[str, Option(help="Data folder; BPE models use its subfolder bpe/.")],
    preset: Annotated[
        str,
        Option(
            help="Preset of the models, e.g. demo, billion-word/large or demo/SM; see "
            "`zipflm info`."
        ),
    ],
    out: Annotated[
        str, Option(help="Folder for the runs and the report (a study), created or continued.")
    ],
    factorizations: Annotated[
        list[str] | None,
        Option(
            help="Factorizations (input and output layers) to train, e.g. ADP-T,SM.",
            show_default="the one in --preset; otherwise ADP-T if --bands, --tail-dropout or "
            "--decoders is given, else all",
        ),
    ] = None,
    seeds: Seeds = 1,
    recipe: Recipe = "paper",
    bands: Bands = None,
    tail_dropout: TailDropout = None,
    decoders: Annotated[
        list[str] | None,
        Option(help="Decoders to compare: transformer, gcnn, lstm and qrnn, separated by commas."),
    ] = None,
    equal: Annotated[
        str,
        Option(
            help="Training budget that all models share: updates (as in the paper), text or "
            "seconds."
        ),
    ] = "updates",
    grid: Annotated[
        list[str] | None,
        Option(
            help="A setting and values to try, e.g. decoder.dropout=0.1,0.2. Every model "
            "uses the value that gives it the lowest loss on the validation set. Can be repeated."
        ),
    ] = None,
    memory: Annotated[
        list[str] | None,
        Option(help="Also score every model with this cache, e.g. cache:2000. Can be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only list the models to train and the estimated time.")
    ] = False,
    device: Device = None,
    stall_seconds: StallSeconds = STALL_SECONDS,
    as_json: Json = False,
) -> None:
    """Train several models on the same data and compare their losses by word frequency.

    By default, these are the paper's factorizations: models that differ in how
    they represent words at the input and the output. Exits with status 1 if a model failed,
    130 if interrupted.
    """
    from zipflm.api import assignments
    from zipflm.distributed import processes
    from zipflm.studies.compare import compare as run_study
    from zipflm.studies.compare import dry_run as show
    from zipflm.studies.plan import Request

    request = Request(
        data=Path(data),
        preset=preset,
        out=Path(out),
        factorizations=split_commas("--factorizations", factorizations),
        seeds=seeds,
        recipe=recipe,
        overrides=tuple(assignments(overrides or [])),
        bands=split_commas("--bands", bands),
        tail_dropout=parse_numbers("--tail-dropout", tail_dropout, float),
        decoders=split_commas("--decoders", decoders),
        equal=equal,
        grid=tuple(grid or ()),
        memory=tuple(memory or ()),
    )
    if dry_run:
        if as_json:
            raise ValueError("--json: not with --dry-run, which prints a table; leave it out")
        show(request, device=device)
        return
    with _progress_to_stderr(as_json), processes.started(device, stall_seconds):
        finished = run_study(request, device=device)
    _print_results(finished, as_json)
    if finished.stopped or finished.failures:
        raise typer.Exit(INTERRUPTED if finished.stopped else MEMBER_FAILED)


@command(
    "zipflm report runs/a runs/b --data data/words --out report",
    "zipflm report runs/a --data data/words --out contexts --context-sizes 0,256",
    "zipflm report study --data data/words --out new-report",
    "zipflm report runs/a runs/b --curves curves.svg --x seconds",
)
def report(
    runs: Annotated[
        list[str],
        Argument(
            help="Run folders or checkpoints; or folders from `zipflm compare`, to combine their "
            "seeds into one report."
        ),
    ],
    *,
    data: Annotated[
        str | None,
        Option(help="Data folder, required for a report; BPE models use its subfolder bpe/."),
    ] = None,
    out: Annotated[str | None, Option(help="Folder to write to, required for a report.")] = None,
    curves: Annotated[
        str | None,
        Option(help="Plot training curves to this .png, .svg or .pdf file; needs no other option."),
    ] = None,
    x: Annotated[str, Option(help="x axis of --curves: update or seconds.")] = "update",
    context_sizes: Annotated[
        list[str] | None,
        Option(help="Also score with each of these context sizes, in tokens, e.g. 0,480."),
    ] = None,
    block: Block = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare the losses of runs by word frequency, with figures, or plot training curves."""
    from zipflm import api

    if curves is not None:
        from zipflm.studies.curves import plot

        if is_first_process():
            plot([Path(run) for run in runs], Path(curves), x)
            echo(curves)
        if data is None and out is None:
            return
    if data is None or out is None:
        raise ValueError(
            "--data, --out: both are required for a report; to plot only training curves, use "
            "--curves without them"
        )
    with _progress_to_stderr(as_json), show_progress():
        finished = api.report(
            runs,
            data=data,
            out=out,
            context_sizes=parse_numbers("--context-sizes", context_sizes, int),
            block=block,
            checkpoint=checkpoint,
            device=device,
        )
    _print_results(finished, as_json)


def _progress_to_stderr(as_json: bool) -> AbstractContextManager[object]:
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _print_results(finished: FinishedStudy, as_json: bool) -> None:
    from zipflm.studies.progress import print_table
    from zipflm.studies.report import TABLE

    page = finished.page
    if is_first_process():
        if not as_json:
            print_table(finished.study)
        if page is not None:
            table = page.parent / TABLE
            echo(table.read_text(encoding="utf-8") if as_json else f"report: {page}")
        if finished.stopped:
            (print_error if as_json else echo)("stopped; run the same command again to continue")
        elif finished.failures:
            reasons = "; ".join(f"{label}: {why}" for label, why in finished.failures.items())
            print_error(f"failed: {reasons}")
