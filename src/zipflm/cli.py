"""The command line: one table of commands, each a thin call of one library function.

Everything heavy is imported inside the command, so that `--help` is instant. A `ValueError` or
`OSError` from the library is the user's to mend: one line on stderr, exit status 2, no traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Word-level and large-vocabulary language models.",
)


@app.callback()
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from zipflm import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def prepare(
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Training text: files, globs or -, also .gz .bz2 .xz .zst."),
    ] = None,
    *,
    out: Annotated[str, typer.Option(help="The data folder to make.")],
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Instead of texts: state-of-the-union, wikitext-2, wikitext-103 or billion-word."
        ),
    ] = None,
    valid: Annotated[list[str] | None, typer.Option(help="Validation text.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="Test text.")] = None,
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
    with progress_bar() as report:
        if corpus is None:
            folder = make(out, splits, options, processes=processes, report=report)
        elif any(splits.values()):
            raise ValueError("--corpus brings its own texts: leave out the others")
        else:
            folder = prepare_by_name(
                out, corpus, options, cache=cache, processes=processes, report=report
            )
    typer.echo(summary(folder))


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
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")] = None,
) -> None:
    """Train a model; with torchrun, on many devices."""
    from pathlib import Path

    from zipflm.data.folder import DataFolder
    from zipflm.recipes import resolve
    from zipflm.training.trainer import train as run

    folder = DataFolder.open(data)
    config = resolve(preset, recipe, overrides or [], len(folder.vocabulary))
    if not run(config, folder, Path(out), resume=resume, keep=keep, device=device):
        typer.echo(f"stopped and saved in {out}; to go on, give the same command with --resume")


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"zipflm: {error}", file=sys.stderr)
        sys.exit(2)
