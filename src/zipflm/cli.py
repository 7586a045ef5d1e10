"""The command line: one table of commands, each a thin call of one library function.

Everything heavy is imported inside the command, so that `--help` is instant. A `ValueError` or
`OSError` from the library is the user's to mend: one line on stderr, exit status 2, no traceback.

Other exit statuses: 1 if a study is complete but for members that failed, which a line on stderr
names; 130 if a signal stopped training or a study and the same command would go on with it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from zipflm.terminal import lines, one_line

if TYPE_CHECKING:
    from zipflm.comparison.compare import FinishedStudy

_Number = TypeVar("_Number", int, float)

_MEMBER_FAILED = 1
_INTERRUPTED = 130
"""What a shell makes of Ctrl-C."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Word-level and large-vocabulary language models.",
)


@contextmanager
def _removing_what_is_unfinished() -> Iterator[None]:
    """SIGTERM as an exception, so that temporary folders are removed on the way out."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)  # as a shell reports a process that a signal ended

    # Python allows handlers in the main thread only; elsewhere there is nobody to signal.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_version(wanted: bool) -> None:
    if wanted:
        from zipflm import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command()
def params(
    preset: Annotated[
        str | None, typer.Argument(help="One model to break down, e.g. wikitext-103/ADP-T.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it, e.g. decoder.num_layers=8.")
    ] = None,
) -> None:
    """Count parameters: every row of the paper, or one model part by part."""
    from rich.console import Console

    from zipflm.overrides import override
    from zipflm.presets import from_name
    from zipflm.sizes import paper_sizes, parts_table, sizes_table

    console = Console(width=None if sys.stdout.isatty() else 160)
    if preset is not None:
        console.print(parts_table(override(from_name(preset), overrides or [])))
        return
    rows = paper_sizes()
    console.print(sizes_table(rows))
    off = sum(not row.matches for row in rows)
    console.print(f"{len(rows) - off} of {len(rows)} rows match the paper")
    if off:
        raise typer.Exit(1)


class _HeldOutTextsAreNamedOneByOne(TyperCommand):
    """Refuses `--valid a.txt b.txt`, which a shell makes of `--valid *.txt`.

    `b.txt` would be a training text, and the model would be tested on what it was trained on.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option, stray in zip(args, args[2:], strict=False):
            if option in ("--valid", "--test") and (stray == "-" or not stray.startswith("-")):
                raise ValueError(
                    f"{stray}: training text or part of {option}? Put training texts first, "
                    f"quote a glob ({option} '*.txt') and repeat {option} for several files"
                )
        return super().parse_args(ctx, args)


@app.command(cls=_HeldOutTextsAreNamedOneByOne)
def prepare(
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Training text: files, quoted globs or -, also .gz .bz2 .xz .zst."),
    ] = None,
    *,
    out: Annotated[str, typer.Option(help="The data folder to make.")],
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Instead of texts: state-of-the-union, wikitext-2, wikitext-103 or billion-word."
        ),
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option(help="Validation text; can be repeated.")
    ] = None,
    test: Annotated[list[str] | None, typer.Option(help="Test text; can be repeated.")] = None,
    min_count: Annotated[
        int | None,
        typer.Option(help="Rarer words are unknown; 3 unless given, 1 for sub-words."),
    ] = None,
    max_size: Annotated[
        int | None, typer.Option(help="Ids at most, specials included, before padding to 8.")
    ] = None,
    vocabulary: Annotated[
        str | None, typer.Option(help="Take this vocabulary.txt, or fairseq's dict.txt.")
    ] = None,
    bpe: Annotated[int | None, typer.Option(help="Learn so many byte-pair merges.")] = None,
    bpe_codes: Annotated[
        str | None, typer.Option(help="Split words with these subword-nmt codes.")
    ] = None,
    errors: Annotated[
        str, typer.Option(help="On NUL or invalid UTF-8: strict (stop) or replace.")
    ] = "strict",
    processes: Annotated[
        int | None, typer.Option(help="Processes that read text; all cores unless given.")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(help="Where downloads are kept; .cache/zipflm at home unless given."),
    ] = None,
) -> None:
    """Make a data folder from text, or from a corpus by name."""
    from zipflm.data.prepare import Options, prepare_by_name
    from zipflm.data.prepare import prepare as make
    from zipflm.data.progress import progress_bar, summary
    from zipflm.data.scan import default_processes

    options = Options(
        min_count=min_count,
        max_size=max_size,
        vocabulary=vocabulary,
        bpe=bpe,
        bpe_codes=bpe_codes,
        errors=errors,  # type: ignore[arg-type]  # checked there
    )
    splits = {"train": texts or [], "valid": valid or [], "test": test or []}
    processes = default_processes() if processes is None else processes
    with _removing_what_is_unfinished(), progress_bar() as report:
        if corpus is None:
            folder = make(out, splits, options, processes=processes, report=report)
        elif any(splits.values()):
            raise ValueError("--corpus brings its own texts: leave out the others")
        else:
            folder = prepare_by_name(
                out, corpus, options, cache=cache, processes=processes, report=report
            )
    _say(summary(folder))


@app.command()
def train(
    preset: Annotated[str, typer.Argument(help="What to train, e.g. wikitext-103/ADP-T.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it, e.g. decoder.num_layers=8.")
    ] = None,
    *,
    data: Annotated[str, typer.Option(help="The data folder, from `zipflm prepare`.")],
    out: Annotated[str, typer.Option(help="The run folder to make, or to continue.")],
    recipe: Annotated[
        str, typer.Option(help="paper (as published) or modern (Muon, bfloat16, rotary ...).")
    ] = "paper",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint, if any.")
    ] = False,
    keep: Annotated[
        int, typer.Option(min=0, help="Checkpoints to keep besides the best; 0 keeps all.")
    ] = 3,
    other_text: Annotated[
        bool,
        typer.Option("--other-text", help="With --resume: go on with another training text."),
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")] = None,
) -> None:
    """Train a model; with torchrun, on many devices.

    A signal saves and stops it: exit status 130.
    """
    from pathlib import Path

    from zipflm.data.folder import DataFolder
    from zipflm.recipes import resolve
    from zipflm.training.trainer import train as run

    folder = DataFolder.open(data)
    config = resolve(preset, recipe, overrides or [], len(folder.vocabulary))
    is_finished = run(
        config,
        folder,
        Path(out),
        resume=resume,
        keep=keep,
        device=device,
        other_text=other_text,
    )
    if not is_finished:
        raise typer.Exit(_INTERRUPTED)


@app.command()
def plot(
    runs: Annotated[list[str], typer.Argument(help="Run folders.")],
    *,
    out: Annotated[str, typer.Option(help="The picture: .png, .svg or .pdf.")] = "curves.png",
    x: Annotated[str, typer.Option(help="update, seconds or epoch.")] = "update",
) -> None:
    """Draw the curves of several runs into one picture."""
    from pathlib import Path

    from zipflm.training.curves import plot as draw

    draw([Path(run) for run in runs], Path(out), x)
    _say(out)


@app.command("import-fairseq")
def import_fairseq(
    checkpoint: Annotated[str, typer.Argument(help="A fairseq language model, *.pt.")],
    *,
    dictionary: Annotated[
        str, typer.Option("--dict", help="The dict.txt of the data it was trained on.")
    ],
    out: Annotated[str, typer.Option(help="The run folder to make.")],
    bpe_codes: Annotated[
        str | None, typer.Option(help="subword-nmt codes of a sub-word model, to score raw text.")
    ] = None,
) -> None:
    """Make a run folder from a model that fairseq trained."""
    from pathlib import Path

    from zipflm.interop.fairseq_run import import_run

    model = import_run(checkpoint, dictionary, Path(out), bpe_codes=bpe_codes)
    _say(
        f"{out}: {model.config.name}, {model.config.num_params():,} parameters, "
        f"{model.config.vocab_size:,} entries of unit {model.config.batches.unit}"
    )


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="A run folder, or one of its checkpoints.")],
    *,
    data: Annotated[str | None, typer.Option(help="The data folder to score.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Of the data folder: train, valid or test (if not given).")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Instead of a data folder: a text, or - for stdin.")
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="Tokens the model sees at once; the run's own unless given.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Of these, how many are context and not scored.")
    ] = None,
    break_mode: Annotated[
        str | None,
        typer.Option("--break", help="Cut at: none, complete (whole lines) or sentence (lines)."),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens in one pass; bounds the memory.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")] = None,
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Of a run: newest (if not given), best or a number of updates."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Perplexity of a run on a split or a text, with any block and context."""
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.evaluation.evaluate import evaluate as score
    from zipflm.runs.folder import parse_choice

    options = ScoringOptions(
        block=block,
        context=context,
        break_mode=break_mode,  # type: ignore[arg-type]  # checked there
        batch_tokens=batch_tokens,
        device=device,
        precision=precision,  # type: ignore[arg-type]  # checked there
    )
    choice = parse_choice(checkpoint)
    with _removing_what_is_unfinished():
        found = score(run, data=data, split=split, text=text, checkpoint=choice, options=options)
    _say(found.as_json() if as_json else found.as_text())


@app.command()
def compare(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to every member, e.g. decoder.num_layers=8.")
    ] = None,
    *,
    data: Annotated[str, typer.Option(help="The data folder; sub-words are in its bpe/.")],
    preset: Annotated[str, typer.Option(help="Sizes and training, e.g. wikitext-103 or demo.")],
    out: Annotated[str, typer.Option(help="The folder of the study, new or to go on with.")],
    factorizations: Annotated[
        str | None, typer.Option(help="Some of the eight, e.g. ADP-T,SM; all unless given.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of every member, with different seeds.")] = 1,
    recipe: Annotated[str, typer.Option(help="paper or modern, as for train.")] = "paper",
    bands: Annotated[
        str | None, typer.Option(help="Compare words per band, e.g. 5k/155k/100k,20k/40k/200k.")
    ] = None,
    tail_dropout: Annotated[
        str | None, typer.Option(help="Compare dropout in the tail bands, e.g. 0,0.2.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")] = None,
) -> None:
    """Train the paper's factorizations on your text and report where each one wins.

    Exit status 1 if a member has no result, 130 if a signal stopped it.
    """
    from pathlib import Path

    from zipflm.comparison.compare import compare as run
    from zipflm.comparison.plan import Request
    from zipflm.presets import FACTORIZATIONS

    varies = bands is not None or tail_dropout is not None
    request = Request(
        data=Path(data),
        preset=preset,
        out=Path(out),
        factorizations=(
            (("ADP-T",) if varies else FACTORIZATIONS)
            if factorizations is None
            else _parts(factorizations)
        ),
        seeds=seeds,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        bands=_parts(bands),
        tail_dropout=_numbers("--tail-dropout", tail_dropout, float),
    )
    _conclude(run(request, device=device))


@app.command()
def analyse(
    runs: Annotated[list[str], typer.Argument(help="Run folders, or checkpoints in them.")],
    *,
    data: Annotated[str, typer.Option(help="The data folder; sub-words are in its bpe/.")],
    out: Annotated[str, typer.Option(help="Where to write the report.")],
    context_sizes: Annotated[
        str | None, typer.Option(help="Also score with so much context, e.g. 0,480.")
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="Tokens seen at once; the run's own unless given.")
    ] = None,
    bands: Annotated[
        str | None, typer.Option(help="Train the run's model with these words per band as well.")
    ] = None,
    tail_dropout: Annotated[
        str | None, typer.Option(help="Train it with these dropouts in the tail as well.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of every such setting.")] = 1,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Of every run: newest (if not given), best or a number of updates."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")] = None,
) -> None:
    """Losses by word frequency, figures and word lists of any runs."""
    from pathlib import Path

    from zipflm.comparison import analyse as library
    from zipflm.comparison.progress import print_table
    from zipflm.evaluation.evaluate import ScoringOptions
    from zipflm.runs.folder import parse_choice

    paths, choice = [Path(run) for run in runs], parse_choice(checkpoint)
    if bands is not None or tail_dropout is not None:
        if len(paths) != 1 or context_sizes is not None:
            raise ValueError("--bands and --tail-dropout start from one run, without contexts")
        rates = _numbers("--tail-dropout", tail_dropout, float)
        _conclude(
            library.ablate(
                paths[0],
                Path(data),
                Path(out),
                bands=_parts(bands),
                tail_dropout=rates,
                checkpoint=choice,
                seeds=seeds,
                device=device,
            )
        )
        return
    study = library.analyse(
        paths,
        Path(data),
        Path(out),
        checkpoint=choice,
        context_sizes=_numbers("--context-sizes", context_sizes, int),
        options=ScoringOptions(block=block, device=device),
    )
    print_table(study)
    _say(f"report: {Path(out) / 'report.html'}")


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _numbers(option: str, text: str | None, kind: type[_Number]) -> tuple[_Number, ...]:
    try:
        return tuple(kind(part) for part in _parts(text))
    except ValueError:
        raise ValueError(f"{option} {text}: write numbers with commas between them") from None


def _conclude(finished: FinishedStudy) -> None:
    """The end of a study on the terminal; under torchrun the first process alone speaks."""
    import os

    from zipflm.comparison.progress import print_table

    if os.environ.get("RANK", "0") == "0":
        print_table(finished.study)
        if finished.page is not None:
            _say(f"report: {finished.page}")
        if finished.stopped:
            _say("stopped before the end; the same command goes on where it was")
        elif finished.failures:
            reasons = "; ".join(f"{label}: {why}" for label, why in finished.failures.items())
            _complain(f"without a result: {reasons}")
    if finished.stopped or finished.failures:
        raise typer.Exit(_INTERRUPTED if finished.stopped else _MEMBER_FAILED)


def _say(text: str) -> None:
    """Print lines in which names may come from anybody's file."""
    typer.echo(lines(text))


def _complain(text: str) -> None:
    print(f"zipflm: {one_line(text)}", file=sys.stderr)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except (ValueError, OSError) as error:
        _complain(str(error))
        sys.exit(2)
    except OverflowError as error:  # a number that nothing has refused before
        _complain(f"a number is too large to compute with ({error}); give smaller ones")
        sys.exit(2)
