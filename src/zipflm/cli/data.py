"""The command that makes a data folder."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from zipflm.cli.app import (
    Command,
    Encoding,
    Errors,
    Json,
    Lowercase,
    Size,
    Words,
    command,
    complain,
    removing_what_is_unfinished,
    say,
)


class _HeldOutTextsAreNamedOneByOne(Command):
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


@command(
    "zipflm prepare train.txt --valid valid.txt --test test.txt --out data/words",
    "zipflm prepare 'articles/*.txt.gz' --valid held-out.txt --words words --out data/prose",
    "zipflm prepare --corpus state-of-the-union --out data/union",
    "zipflm prepare old.txt --encoding latin-1 --out data/old",
    "zipflm prepare 's3://bucket/*.txt' --engine dask --scheduler tcp://10.0.0.1:8786 --out ...",
    cls=_HeldOutTextsAreNamedOneByOne,
)
def prepare(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Training text: files, quoted globs, URLs or -, also .gz .bz2 .xz .zst."
        ),
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
    ids: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of texts: sequences of integers, .npy, .npz or text; can be repeated."
        ),
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="Names of these integers, one per line, that of 0 first.")
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(help="Rarer words are unknown; 3 unless given, 1 for sub-words and ids."),
    ] = None,
    max_size: Annotated[
        int | None, Size("Maximum number of ids, specials included, before padding to 8.")
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="Use this vocabulary.txt or fairseq's dict.txt, or the vocabulary, --words and "
            "--bpe-codes of this run or data folder."
        ),
    ] = None,
    bpe: Annotated[
        int | None, Size("Learn this many BPE merges from the training text, e.g. 32k.")
    ] = None,
    bpe_codes: Annotated[
        str | None, typer.Option(help="Split words with these subword-nmt codes.")
    ] = None,
    words: Words = None,
    lowercase: Lowercase = False,
    errors: Errors = "strict",
    encoding: Encoding = "utf-8",
    processes: Annotated[
        int | None, typer.Option(help="Processes that read text; one per core unless given.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Read the texts in local processes, or with dask (a cluster).")
    ] = "processes",
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="With dask: a scheduler's address, e.g. tcp://10.0.0.1:8786, or local (if not "
            "given): a cluster of --processes here."
        ),
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help="Folder for downloads; ~/.cache/zipflm unless given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a data folder from text, from a corpus by name, or from sequences of integers."""
    from zipflm import api
    from zipflm.data.folder import FACTS_FILE
    from zipflm.data.prepare import data_warnings, progress_bar, summary

    with removing_what_is_unfinished(), progress_bar() as report:
        folder = api.prepare(
            texts,
            out=out,
            corpus=corpus,
            valid=valid,
            test=test,
            ids=ids,
            names=names,
            min_count=min_count,
            max_size=max_size,
            vocabulary=vocabulary,
            bpe=bpe,
            bpe_codes=bpe_codes,
            words=words,
            lowercase=lowercase,
            errors=errors,
            encoding=encoding,
            processes=processes,
            engine=engine,
            scheduler=scheduler,
            cache=cache,
            report=report,
        )
    say((folder.path / FACTS_FILE).read_text(encoding="utf-8") if as_json else summary(folder))
    for doubt in data_warnings(folder):
        complain(f"warning: {doubt}")
