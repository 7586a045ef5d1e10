"""Commands that use a trained model: score text, generate, rescore n-best lists."""

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
    Json,
    Memory,
    Run,
    command,
    complain,
    parts,
    removing_what_is_unfinished,
    run_comes_first,
    say,
    tell,
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
        str, typer.Option("--format", help="tsv, or surprisal (for psycholinguists).")
    ] = "tsv",
    as_json: Json = False,
    in_bits: Annotated[
        bool, typer.Option("--bits", help="Surprisal in bits instead of natural logarithms.")
    ] = False,
    log10: Annotated[
        bool, typer.Option("--log10", help="Logarithms to base 10, as KenLM's, instead.")
    ] = False,
    top: Annotated[
        int, typer.Option(help="Also list the K most likely alternatives for each word.")
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
    memory: Memory = None,
    block: Block = None,
    context: Context = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Natural log-probability of every word, line or file, written while it reads.

    With --log10 logarithms are to base 10, as KenLM's; with --json there is a line of JSON per row.
    """
    from zipflm.data.prepare import progress_bar
    from zipflm.data.text import expand
    from zipflm.evaluation.progress import on_progress
    from zipflm.language.model import load
    from zipflm.language.score_command import ScoreOptions, score_files

    run_comes_first(run, texts or ())
    names = expand(texts or ["-"])
    options = ScoreOptions(
        per=per,  # type: ignore[arg-type]  # checked there
        format="jsonl" if as_json else output_format,  # type: ignore[arg-type]  # checked there
        bits=in_bits,
        log10=log10,
        ends=ends,
        lines=lines,  # type: ignore[arg-type]  # checked there
        prefix=prefix,
        top=top,
        errors=errors,  # type: ignore[arg-type]  # checked there
        encoding=encoding,
    )
    lm = load(
        run,
        checkpoint=checkpoint,
        device=device,
        dtype=dtype,
        block=block,
        context=context,
        memory=memory or (),
    )
    # Rows and a bar on one terminal would write over each other.
    bar = nullcontext(lambda *_: None) if sys.stdout.isatty() else progress_bar()
    with bar as report, on_progress(report):
        for rows in score_files(lm, names, options):
            _write_rows(rows)


@command(
    'zipflm generate runs/first --prompt "the state of" --temperature 0.8',
    "zipflm generate runs/first --num 5 --seed 1 --top-p 0.95 --json",
)
def generate(
    run: Run,
    *,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    max_words: Annotated[int, typer.Option(help="Maximum number of words to generate.")] = 50,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most likely word, 1 samples from the model.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the K most likely words; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely words that make up this mass.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="For the same texts again; random unless given.")
    ] = None,
    num: Annotated[int, typer.Option(help="Number of texts.")] = 1,
    lines: Annotated[int, typer.Option(help="Lines after which a text ends; 0: no limit.")] = 1,
    forbid_unknown: Annotated[
        bool, typer.Option("--forbid-unknown/--allow-unknown", help="Never write <unk>.")
    ] = True,
    as_json: Json = False,
    memory: Memory = None,
    block: Block = None,
    context: Context = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Generate text from a prompt. A single text is streamed word by word.

    With --json, a line per text with the natural log-probability of every word.
    """
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
    lm = load(
        run,
        checkpoint=checkpoint,
        device=device,
        dtype=dtype,
        block=block,
        context=context,
        memory=memory or (),
    )
    writer = Writer(lm.engine, lm.reader, prompt, sampling, num)
    if writer.unknown_in_prompt:
        complain(f"unknown to this run, and read as <unk>: {' '.join(writer.unknown_in_prompt)}")
    if as_json:
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


@command(
    "zipflm rescore runs/first nbest.tsv --weights lm=0.7,words=-0.2 --out rescored.tsv",
    "zipflm rescore runs/first nbest.jsonl --reference references.txt --out tuned.jsonl",
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
            help="Of the run's score (natural logarithms), the list's scores and the number of "
            "words, e.g. lm=0.7,words=-0.2. Unless given: lm=1, words=0; total=1 if the list has "
            "a total, else 1 for each of its scores."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Reference transcripts; weights are tuned to minimise word error rate on them."
        ),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(help="Weights to tune; lm,words unless given, without those of --weights."),
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
    name: Annotated[str, typer.Option(help="Name of the run's score.")] = "lm",
    out: Annotated[
        str | None, typer.Option(help="Write the sorted list to this file, not to stdout.")
    ] = None,
    scores_out: Annotated[
        str | None, typer.Option(help="For kaldi: a file of hypothesis, run's score and total.")
    ] = None,
    one_best: Annotated[
        bool, typer.Option("--one-best", help="Write the best hypothesis of each utterance only.")
    ] = False,
    memory: Memory = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Add a run's score to n-best lists and sort them again, best hypothesis first.

    With --reference the weights are tuned on these lists, and printed on stderr.
    """
    from zipflm.data.prepare import progress_bar
    from zipflm.evaluation.progress import on_progress
    from zipflm.language import rescore_command as library
    from zipflm.language.rescoring import Results, parse_weights

    run_comes_first(run, [nbest])
    options = library.RescoreOptions(
        format=format,
        weights=parse_weights(",".join(weights)) if weights else {},
        reference=reference,
        tune=parts(tune),
        scores=_files("--scores", scores),
        costs=_files("--costs", costs),
        encoding=encoding,
        name=name,
        results=Results(out=out, scores_out=scores_out, one_best=one_best),
    )
    # Lines and a bar on one terminal would write over each other.
    to_terminal = out in (None, "-") and sys.stdout.isatty()
    bar = nullcontext(lambda *_: None) if to_terminal else progress_bar("hypotheses")
    with removing_what_is_unfinished(), bar as report, on_progress(report):
        library.rescore_file(
            nbest,
            options,
            lambda: library.run_scorer(
                run, checkpoint=checkpoint, device=device, dtype=dtype, memory=memory or ()
            ),
            say=tell,
        )


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
