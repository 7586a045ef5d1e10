"""Commands that measure: perplexities, comparisons, reports."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zipflm.cli.app import (
    INTERRUPTED,
    MEMBER_FAILED,
    STALL_SECONDS,
    Block,
    Checkpoint,
    Device,
    Dtype,
    Encoding,
    Errors,
    Json,
    Run,
    Seeds,
    Size,
    StallSeconds,
    command,
    complain,
    expanded,
    is_first_process,
    numbers,
    parts,
    removing_what_is_unfinished,
    say,
    showing_progress,
)

if TYPE_CHECKING:
    from zipflm.studies.compare import FinishedStudy
    from zipflm.studies.study import Study


@command(
    "zipflm evaluate runs/first --data data/words",
    "zipflm evaluate runs/first --data data/words --split valid --checkpoint best --json",
    "zipflm evaluate runs/first --text article.txt --block 256 --context 128",
)
def evaluate(
    run: Run,
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
    context: Annotated[
        int | None,
        typer.Option(
            help="Of these, how many are context and not scored; the run's own unless given."
        ),
    ] = None,
    break_mode: Annotated[
        str | None,
        typer.Option(
            "--break",
            help="Cut at: none, complete (whole lines) or sentence (lines); the run's own unless "
            "given.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        Size("Tokens in one pass; bounds the memory; what suits it unless given."),
    ] = None,
    device: Device = None,
    dtype: Dtype = "float32",
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> None:
    """Perplexity of a run on a split or a text, with any block and context.

    With torchrun, each process scores a share of the text.
    """
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.evaluation.evaluate import evaluate as score
    from zipflm.runs.folder import parse_choice
    from zipflm.training import distributed

    options = ScoringOptions(
        block=block,
        context=context,
        break_mode=break_mode,  # type: ignore[arg-type]  # checked there
        batch_tokens=batch_tokens,
        device=device,
        precision=dtype,  # type: ignore[arg-type]  # checked there
    )
    choice = parse_choice(checkpoint)
    with (
        distributed.started(device) as process,
        removing_what_is_unfinished(),
        showing_progress(),
    ):
        found = score(
            run,
            data=data,
            split=split,
            text=text,
            checkpoint=choice,
            options=options,
            encoding=encoding,
            errors=errors,  # type: ignore[arg-type]  # checked there
            share=process,
        )
    if process.is_first:
        say(found.as_json() if as_json else found.as_text())


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
    preset: Annotated[str, typer.Option(help="Sizes and training, e.g. wikitext-103 or demo.")],
    out: Annotated[str, typer.Option(help="The folder of the study, new or to go on with.")],
    factorizations: Annotated[
        list[str] | None, typer.Option(help="Some of the eight, e.g. ADP-T,SM; all unless given.")
    ] = None,
    seeds: Seeds = 1,
    recipe: Annotated[str, typer.Option(help="paper or modern, as for train.")] = "paper",
    bands: Annotated[
        list[str] | None,
        typer.Option(help="Compare words per band, e.g. 5k/155k/100k,20k/40k/200k."),
    ] = None,
    tail_dropout: Annotated[
        list[str] | None, typer.Option(help="Compare dropout in the tail bands, e.g. 0,0.2.")
    ] = None,
    equal: Annotated[
        str,
        typer.Option(
            help="What every member gets as much of: updates (as the paper), text or seconds."
        ),
    ] = "updates",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="A field and values, e.g. training.optimizer.lr=1e-3,3e-3: every member takes the "
            "best on the valid set. May be given several times."
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
    from zipflm.presets import FACTORIZATIONS
    from zipflm.studies.compare import compare as run
    from zipflm.studies.compare import dry_run as show
    from zipflm.studies.plan import Request
    from zipflm.training import distributed

    varies = bool(bands or tail_dropout)
    request = Request(
        data=Path(data),
        preset=preset,
        out=Path(out),
        factorizations=(
            (("ADP-T",) if varies else FACTORIZATIONS)
            if not factorizations
            else parts(factorizations)
        ),
        seeds=seeds,
        recipe=recipe,
        overrides=tuple(expanded(overrides)),
        bands=parts(bands),
        tail_dropout=numbers("--tail-dropout", tail_dropout, float),
        equal=equal,
        tune=tuple(grid or ()),
    )
    # Whatever one of several processes finds wrong with what it sees, all of them know.
    with distributed.started(device, stall_seconds):
        if dry_run:
            show(request, device=device)
            return
        with _progress_aside(as_json):
            finished = run(request, device=device)
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
        list[str] | None, typer.Option(help="Also score with so much context, e.g. 0,480.")
    ] = None,
    block: Block = None,
    bands: Annotated[
        list[str] | None,
        typer.Option(help="Train the run's model with these words per band as well."),
    ] = None,
    tail_dropout: Annotated[
        list[str] | None, typer.Option(help="Train it with these dropouts in the tail as well.")
    ] = None,
    seeds: Seeds = 1,
    checkpoint: Checkpoint = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Losses by word frequency, figures and word lists of any runs; their training curves."""
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
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.runs.folder import parse_choice
    from zipflm.studies import analyse as library
    from zipflm.studies.analyse import is_study, redraw

    paths, choice = [Path(run) for run in runs], parse_choice(checkpoint)
    if seeds != 1 and not (bands or tail_dropout):
        raise ValueError(f"--seeds {seeds}: nothing is trained without --bands or --tail-dropout")
    if len(paths) == 1 and is_study(paths[0]):
        if context_sizes or block is not None or bands or tail_dropout or checkpoint is not None:
            raise ValueError(
                f"{runs[0]}: a study is drawn again from its kept scores, as it was scored; for "
                "other contexts, blocks or checkpoints give the runs in its members/"
            )
        if is_first_process():
            _show(redraw(paths[0], Path(data), Path(out)), Path(out) / "report.html", as_json)
        return
    if bands or tail_dropout:
        if len(paths) != 1 or context_sizes or block is not None:
            raise ValueError(
                "--bands, --tail-dropout: start from one run, without --context-sizes and --block"
            )
        rates = numbers("--tail-dropout", tail_dropout, float)
        with _progress_aside(as_json):
            finished = library.ablate(
                paths[0],
                Path(data),
                Path(out),
                bands=parts(bands),
                tail_dropout=rates,
                checkpoint=choice,
                seeds=seeds,
                device=device,
            )
        _conclude(finished, as_json)
        return
    with showing_progress():
        study = library.analyse(
            paths,
            Path(data),
            Path(out),
            checkpoint=choice,
            context_sizes=numbers("--context-sizes", context_sizes, int),
            options=ScoringOptions(block=block, device=device),
        )
    if is_first_process():
        _show(study, Path(out) / "report.html", as_json)


def _progress_aside(as_json: bool) -> AbstractContextManager[object]:
    """Standard output is for the result alone where a program reads it."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _show(study: Study, page: Path | None, as_json: bool) -> None:
    from zipflm.studies.progress import print_table
    from zipflm.studies.report import TABLE

    if not as_json:
        print_table(study)
        if page is not None:
            say(f"report: {page}")
    elif page is not None:
        say((page.parent / TABLE).read_text(encoding="utf-8"))


def _conclude(finished: FinishedStudy, as_json: bool) -> None:
    """The end of a study on the terminal; under torchrun the first process alone speaks."""
    if is_first_process():
        _show(finished.study, finished.page, as_json)
        if finished.stopped:
            (complain if as_json else say)(
                "stopped before the end; the same command goes on where it was"
            )
        elif finished.failures:
            reasons = "; ".join(f"{label}: {why}" for label, why in finished.failures.items())
            complain(f"without a result: {reasons}")
    if finished.stopped or finished.failures:
        raise typer.Exit(INTERRUPTED if finished.stopped else MEMBER_FAILED)
