"""`zipflm score`, `generate` and `rescore`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Annotated

from typer import Argument, Option

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
    Model,
    check_argument_order,
    cleanup_on_sigterm,
    command,
    echo,
    echo_stderr,
    print_error,
    show_progress,
    split_commas,
)


@command(
    "zipflm score runs/first article.txt > scores.tsv",
    "zipflm score runs/first 'articles/*.txt' --per document",
    "echo the state of the union | zipflm score runs/first --bits",
)
def score(
    run: Model,
    texts: Annotated[
        list[str] | None,
        Argument(
            help="Text files (also .gz, .bz2, .xz, .zst) or quoted globs.", show_default="stdin"
        ),
    ] = None,
    *,
    per: Annotated[
        str, Option(help="Print one row per word, line or document (file), or only a total.")
    ] = "word",
    as_json: Json = False,
    in_bits: Annotated[
        bool, Option("--bits", help="Print surprisals in bits instead of log-probabilities.")
    ] = False,
    log10: Annotated[
        bool, Option("--log10", help="Print logarithms to base 10, as KenLM does.")
    ] = False,
    top: Annotated[
        int, Option(help="Also list the K most likely words at each position (0: none).")
    ] = 0,
    prefix: Annotated[
        str,
        Option(help="Context to add before every line, or before every file with --lines running."),
    ] = "",
    lines: Annotated[
        str,
        Option(help="Score each line (independent) or each file (running) as one text."),
    ] = "independent",
    ends: Annotated[
        bool, Option("--ends/--no-ends", help="Include line ends in rows and sums.")
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
    """Print the log-probability (natural by default) of every word, line or file.

    With --json, every row is a line of JSON.
    """
    from zipflm.data.text import expand
    from zipflm.language.files import destination
    from zipflm.language.model import load
    from zipflm.language.score_command import ScoreOptions, score_files

    check_argument_order(run, texts or ())
    if not texts and sys.stdin.isatty():
        print_error("reading the text from standard input; end it with Ctrl-D")
    names = expand(texts or ["-"])
    options = ScoreOptions(
        per=per,  # type: ignore[arg-type]  # checked by ScoreOptions
        json=as_json,
        bits=in_bits,
        log10=log10,
        ends=ends,
        lines=lines,  # type: ignore[arg-type]  # checked by ScoreOptions
        prefix=prefix,
        top=top,
        errors=errors,  # type: ignore[arg-type]  # checked by ScoreOptions
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
    # A progress bar would overwrite rows on the same terminal.
    with show_progress(is_hidden=sys.stdout.isatty()), destination(None) as out:
        for rows in score_files(lm, names, options):
            out.write("".join(f"{row}\n" for row in rows))
            sys.stdout.flush()  # a program at the other end of a pipe may be waiting


@command(
    'zipflm generate runs/first --prompt "the state of" --temperature 0.8',
    "zipflm generate runs/first --num 5 --seed 1 --top-p 0.95 --json",
)
def generate(
    run: Model,
    *,
    prompt: Annotated[str, Option(help="Text to continue.")] = "",
    max_words: Annotated[int, Option(help="Maximum number of words to generate.")] = 50,
    temperature: Annotated[
        float, Option(help="Sampling temperature (0: always the most likely word).")
    ] = 1.0,
    top_k: Annotated[int, Option(help="Sample from the K most likely words (0: all).")] = 0,
    top_p: Annotated[
        float,
        Option(help="Sample from the most likely words up to this total probability."),
    ] = 1.0,
    seed: Annotated[
        int | None, Option(help="Seed for reproducible texts.", show_default="random")
    ] = None,
    num: Annotated[int, Option(help="Number of texts to generate.")] = 1,
    lines: Annotated[int, Option(help="Maximum number of lines per text (0: no limit).")] = 1,
    forbid_unknown: Annotated[
        bool, Option("--forbid-unknown/--allow-unknown", help="Never generate <unk>.")
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

    With --json, every text is a line of JSON with the natural log-probability of every word.
    """
    import json

    from zipflm.language.decoding import SamplingOptions, TextGenerator
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
    generator = TextGenerator(lm.engine, lm.reader, prompt, sampling, num)
    if generator.unknown_in_prompt:
        unknown = " ".join(generator.unknown_in_prompt)
        print_error(f"warning: not in the vocabulary, read as <unk>: {unknown}")
    if as_json:
        for text in generator.all():
            echo(json.dumps(text.as_dict(), ensure_ascii=False))
    elif num > 1:
        for text in generator.all():
            echo(text.text.rstrip("\n"))
    else:
        _stream(prompt, (word.text for word in generator.words()))
    if generator.has_slid:
        blocks = lm.engine.blocks
        print_error(
            f"warning: the text is longer than the block of {blocks.block} tokens; for later "
            f"words, the model sees only part of the text, at least {max(blocks.context, 1)} tokens"
        )


@command(
    "zipflm rescore runs/first nbest.tsv --weights lm=0.7,words=-0.2 --out rescored.tsv",
    "zipflm rescore runs/first nbest.jsonl --reference references.txt --out tuned.jsonl",
    "zipflm rescore runs/first nbest.txt --format kaldi --costs ac=1.acwts --one-best",
)
def rescore(
    run: Model,
    nbest: Annotated[
        str, Argument(help="File of n-best lists (also .gz, .bz2, .xz, .zst), or - for stdin.")
    ],
    *,
    format: Annotated[
        str | None,
        Option(
            help="Format of the lists: kaldi, moses, jsonl or tsv.",
            show_default="from the file name, for .jsonl and .tsv",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        Option(
            help="Weights of the model's score (lm), the number of words (words) and the scores "
            "in the list, e.g. lm=0.7,words=-0.2.",
            show_default="lm=1, words=0; total=1 if the list has a total, else each score=1",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        Option(help="Reference transcripts, to tune weights for the lowest word error rate."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        Option(
            help="With --reference: weights to tune.",
            show_default="lm,words, except those in --weights",
        ),
    ] = None,
    scores: Annotated[
        list[str] | None,
        Option(help="For kaldi: files with a score per hypothesis, e.g. ac=ac.txt."),
    ] = None,
    costs: Annotated[
        list[str] | None,
        Option(help="For kaldi: files with a cost per hypothesis, e.g. ac=1.acwts."),
    ] = None,
    name: Annotated[str, Option(help="Name of the model's score in the output.")] = "lm",
    out: Annotated[
        str | None, Option(help="Write the sorted lists to this file.", show_default="stdout")
    ] = None,
    scores_out: Annotated[
        str | None,
        Option(help="For kaldi: file for the id, model score and total of each hypothesis."),
    ] = None,
    one_best: Annotated[
        bool, Option("--one-best", help="Write only the best hypothesis of each utterance.")
    ] = False,
    memory: Memory = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Add a model's score to n-best lists and sort them, best hypothesis first.

    With --reference, the weights are tuned on these lists and printed on stderr.
    """
    from zipflm.language import rescoring

    check_argument_order(run, [nbest])
    is_terminal_output = out in (None, "-") and sys.stdout.isatty()
    with cleanup_on_sigterm(), show_progress(is_hidden=is_terminal_output):
        rescoring.rescore_file(
            nbest,
            lambda: rescoring.model_scorer(
                run, checkpoint=checkpoint, device=device, dtype=dtype, memory=memory or ()
            ),
            say=echo_stderr,
            format=format,
            weights=_weights(weights),
            reference=reference,
            tuned=split_commas("--tune", tune),
            scores=_named_values("--scores", scores, "ac=ac.txt"),
            costs=_named_values("--costs", costs, "ac=1.acwts"),
            name=name,
            out=out,
            scores_out=scores_out,
            one_best=one_best,
        )


def _weights(values: list[str] | None) -> dict[str, float]:
    example = "lm=0.7,words=-0.2"
    named = _named_values("--weights", values, example)
    try:
        weights = {name: float(value) for name, value in named.items()}
    except ValueError:
        weights = {"": math.nan}
    if not all(map(math.isfinite, weights.values())):
        raise ValueError(f"--weights {','.join(values or ())}: write NAME=NUMBER, e.g. {example}")
    return weights


def _named_values(option: str, values: list[str] | None, example: str) -> dict[str, str]:
    """Parse `ac=ac.txt,graph=graph.txt`."""
    named: dict[str, str] = {}
    for part in split_commas(option, values):
        name, _, value = part.partition("=")
        if not (name and value) or name in named:
            raise ValueError(
                f"{option} {part}: write NAME=VALUE, e.g. {example}, with each name once"
            )
        named[name] = value
    return named


def _stream(prompt: str, texts: Iterable[str]) -> None:
    """Print a text word by word, with one newline at the end."""
    printed = prompt
    echo(prompt, end="")
    try:
        for text in texts:
            echo(text, end="")
            printed = text or printed
    finally:  # also before the message about an interruption
        if not printed.endswith("\n"):
            echo("")
