"""Commands that use a trained model: score text, write."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Annotated

import typer

from zipflm.cli.app import (
    Block,
    Checkpoint,
    Context,
    Device,
    Dtype,
    Encoding,
    Errors,
    Run,
    command,
    complain,
    run_comes_first,
    say,
)
from zipflm.messages import lines as printable_lines
from zipflm.messages import one_line


@command(
    "zipflm score runs/first article.txt > scores.tsv",
    "zipflm score runs/first 'articles/*.txt' --per document",
    "echo the state of the union | zipflm score runs/first --format surprisal --bits",
)
def score(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Files, quoted globs or -, also .gz .bz2 .xz .zst; stdin if none."),
    ] = None,
    *,
    per: Annotated[str, typer.Option(help="A row per word, line, document (file) or total.")] = (
        "word"
    ),
    output_format: Annotated[
        str, typer.Option("--format", help="tsv, jsonl or surprisal (for psycholinguists).")
    ] = "tsv",
    in_bits: Annotated[
        bool, typer.Option("--bits", help="Surprisal in bits instead of natural logarithms.")
    ] = False,
    log10: Annotated[
        bool, typer.Option("--log10", help="Logarithms to base 10, as KenLM's, instead.")
    ] = False,
    top: Annotated[
        int, typer.Option(help="With every word, the so many most likely in its place.")
    ] = 0,
    prefix: Annotated[
        str, typer.Option(help="Text before every line, or file where lines are running.")
    ] = "",
    lines: Annotated[
        str, typer.Option(help="independent, or running: a line knows those before it.")
    ] = "independent",
    ends: Annotated[
        bool, typer.Option("--ends/--no-ends", help="Rows for line ends, which are scored too.")
    ] = True,
    errors: Errors = "strict",
    encoding: Encoding = "utf-8",
    block: Block = None,
    context: Context = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Log-probability of every word, line or file, written while it reads."""
    from zipflm.data.prepare import progress_bar
    from zipflm.data.text import expand
    from zipflm.evaluation.scoring import watched_by
    from zipflm.language.model import load
    from zipflm.language.score_command import ScoreOptions, score_files
    from zipflm.language.score_table import TableOptions

    run_comes_first(run, texts or ())
    names = expand(texts or ["-"])
    table = TableOptions(
        per=per,  # type: ignore[arg-type]  # checked there
        format=output_format,  # type: ignore[arg-type]  # checked there
        bits=in_bits,
        log10=log10,
        ends=ends,
        names_files=len(names) > 1,
    )
    options = ScoreOptions(
        table=table,
        lines=lines,  # type: ignore[arg-type]  # checked there
        prefix=prefix,
        top=top,
        errors=errors,  # type: ignore[arg-type]  # checked there
        encoding=encoding,
    )
    lm = load(run, checkpoint=checkpoint, device=device, dtype=dtype, block=block, context=context)
    # Rows and a bar on one terminal would write over each other.
    bar = nullcontext(lambda *_: None) if sys.stdout.isatty() else progress_bar()
    with bar as report, watched_by(report):
        for rows in score_files(lm, names, options):
            _write_rows(rows)


@command(
    'zipflm generate runs/first --prompt "the state of" --temperature 0.8',
    "zipflm generate runs/first --num 5 --seed 1 --top-p 0.95 --jsonl",
)
def generate(
    run: Run,
    *,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    max_words: Annotated[int, typer.Option(help="Words to write at most.")] = 50,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most likely word, 1 draws as the model has it.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw among so many most likely words; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw among the most likely words that make up this mass.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="The same seed, the same texts; others unless given.")
    ] = None,
    num: Annotated[int, typer.Option(help="Texts to write.")] = 1,
    lines: Annotated[int, typer.Option(help="Lines after which a text ends; 0: no limit.")] = 1,
    forbid_unknown: Annotated[
        bool, typer.Option("--forbid-unknown/--allow-unknown", help="Never write <unk>.")
    ] = True,
    as_jsonl: Annotated[
        bool, typer.Option("--jsonl", help="An object per text, with every word's log-probability.")
    ] = False,
    block: Block = None,
    context: Context = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Write on from a prompt; one text appears word by word, several one after the other."""
    import json

    from zipflm.language.decoding import SamplingOptions
    from zipflm.language.generation import Writer
    from zipflm.language.model import load

    sampling = SamplingOptions(
        max_words=max_words,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        lines=lines,
        forbid_unknown=forbid_unknown,
    )
    lm = load(run, checkpoint=checkpoint, device=device, dtype=dtype, block=block, context=context)
    writer = Writer(lm.engine, lm.reader, prompt, sampling, num)
    if writer.unknown_in_prompt:
        complain(f"unknown to this run, and read as <unk>: {' '.join(writer.unknown_in_prompt)}")
    if as_jsonl:
        for text in writer.all():
            typer.echo(json.dumps(text.as_dict(), ensure_ascii=False))
    elif num > 1:
        for text in writer.all():
            say(text.text.rstrip("\n"))
    else:
        _show_as_it_comes(prompt, (word.text for word in writer.words()))
    if writer.has_slid:
        complain(
            f"longer than the block of {lm.engine.blocks.block} tokens: the later words were "
            f"written with the last {lm.engine.blocks.context} or more before them in view"
        )


def _show_as_it_comes(prompt: str, texts: Iterable[str]) -> None:
    """Print a text in parts; its last line end, if it has one, is printed anyway."""
    printed = prompt
    typer.echo(printable_lines(prompt), nl=False)
    for text in texts:
        typer.echo(printable_lines(text), nl=False)
        sys.stdout.flush()
        printed = text or printed
    if not printed.endswith("\n"):
        typer.echo()


def _write_rows(rows: Iterable[str]) -> None:
    """Now, not when a buffer is full: whoever reads them may be waiting."""
    if sys.stdout.isatty():
        rows = ("\t".join(map(one_line, row.split("\t"))) for row in rows)
    sys.stdout.writelines(f"{row}\n" for row in rows)
    sys.stdout.flush()
