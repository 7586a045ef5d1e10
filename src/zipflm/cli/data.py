"""`zipflm prepare`: create a data folder, and warn about data that looks wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zipflm.cli.app import (
    Command,
    Encoding,
    Errors,
    Json,
    Lowercase,
    Size,
    Words,
    arguments,
    cleanup_on_sigterm,
    command,
    echo,
    print_error,
    progress_bar,
)

if TYPE_CHECKING:
    from zipflm.data.folder import DataFolder

_MAX_UNKNOWN = 0.05
"""Warn if a larger share of a text is out of vocabulary. Does not apply to the text from which the
vocabulary was built, because it leaves out rare words on purpose."""


class _Prepare(Command):
    """Rejects `--valid a.txt b.txt`, to which a shell may expand `--valid *.txt`.

    Otherwise `b.txt` would silently become training text.
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
    cls=_Prepare,
)
def prepare(
    ctx: typer.Context,
    texts: Annotated[
        list[str] | None,
        Argument(
            help="Training text: files (also .gz, .bz2, .xz, .zst), globs, URLs or - for stdin."
        ),
    ] = None,
    *,
    out: Annotated[str, Option(help="Data folder to create.")],
    corpus: Annotated[
        str | None,
        Option(
            help="Use a named corpus: state-of-the-union (included), or wikitext-2, wikitext-103 "
            "or billion-word (downloaded)."
        ),
    ] = None,
    valid: Annotated[list[str] | None, Option(help="Validation text. Can be repeated.")] = None,
    test: Annotated[list[str] | None, Option(help="Test text. Can be repeated.")] = None,
    ids: Annotated[
        list[str] | None,
        Option(
            help="Training data as integers instead of text: .npy, .npz or text files. Can be "
            "repeated."
        ),
    ] = None,
    names: Annotated[
        str | None, Option(help="With --ids: file of names, one per line, for 0, 1, 2, ...")
    ] = None,
    min_count: Annotated[
        int | None,
        Option(
            help="Replace words (or BPE pieces) that occur fewer times than this with <unk>.",
            show_default="3; 1 with BPE or --ids",
        ),
    ] = None,
    max_size: Annotated[
        int | None,
        Size("Maximum vocabulary size, before it is padded to a multiple of 8.", "no limit"),
    ] = None,
    vocabulary: Annotated[
        str | None,
        Option(
            help="Use this vocabulary: vocabulary.txt, fairseq's dict.txt, or a run or data "
            "folder, which also sets --words, --lowercase and --bpe-codes."
        ),
    ] = None,
    bpe: Annotated[
        int | None, Size("Maximum number of BPE merges to learn from the training text, e.g. 32k.")
    ] = None,
    bpe_codes: Annotated[
        str | None, Option(help="Split words with this file of subword-nmt codes.")
    ] = None,
    words: Words = None,
    lowercase: Lowercase = False,
    errors: Errors = "strict",
    encoding: Encoding = "utf-8",
    processes: Annotated[
        int | None, Option(help="Number of processes that read text.", show_default="one per core")
    ] = None,
    engine: Annotated[
        str, Option(help="Read text with local processes (processes) or on a cluster (dask).")
    ] = "processes",
    scheduler: Annotated[
        str | None,
        Option(
            help="With --engine dask: scheduler address, e.g. tcp://10.0.0.1:8786, or local for "
            "a cluster of --processes workers on this machine.",
            show_default="local",
        ),
    ] = None,
    cache: Annotated[
        str | None, Option(help="Folder for downloads.", show_default="~/.cache/zipflm")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a data folder from text, a named corpus, or sequences of integers."""
    from zipflm import api
    from zipflm.data.folder import METADATA_FILE

    with cleanup_on_sigterm(), progress_bar() as report:
        folder = api.prepare(**arguments(ctx, "as_json"), report=report)
    echo((folder.path / METADATA_FILE).read_text(encoding="utf-8") if as_json else summary(folder))
    for warning in data_warnings(folder):
        print_error(f"warning: {warning}")


def summary(folder: DataFolder) -> str:
    """Describe the contents of a folder in a few lines."""
    metadata = folder.metadata
    vocabulary = metadata.vocabulary
    rule = "" if metadata.splitting.is_plain else f", {metadata.splitting}"
    lines = [
        f"{folder.path}: {vocabulary.size:,} ids ({metadata.unit}{rule}), "
        f"hash {vocabulary.hash[:16]}"
    ]
    for name, split in metadata.splits.items():
        unknown = 100 * split.unknown / split.tokens
        files = len(split.sources)
        lines.append(
            f"  {name:5}  {files:>4} file{'s' if files != 1 else ' '}  "
            f"{split.tokens:>13,} tokens  {split.sentences:>11,} sentences  "
            f"{split.types:>10,} types  {unknown:.2f}% unknown"
        )
    if metadata.splitting.is_plain and not metadata.options.ids:
        lines.append("  words are separated by spaces (use --words words to split off punctuation)")
    requested, learned = metadata.options.bpe, metadata.bpe.merges if metadata.bpe else 0
    if requested is not None and learned < requested:
        lines.append(
            f"  learned {learned:,} of {requested:,} merges: no remaining pair occurs more than "
            "once"
        )
    return "\n".join(lines)


def data_warnings(folder: DataFolder) -> Iterator[str]:
    """Yield warnings about data that looks wrong."""
    options = folder.metadata.options
    origin = "the text of the vocabulary" if options.vocabulary else "the training text"
    for name, split in folder.metadata.splits.items():
        unknown = split.out_of_vocabulary / split.words
        if (name != "train" or options.vocabulary) and unknown > _MAX_UNKNOWN:
            yield (
                f"{unknown:.1%} of the words of the {name} text are unknown; check that it is the "
                f"same kind of text as {origin}, with the same tokenization"
                + (
                    ""
                    if options.vocabulary or options.ids or folder.unit == "bpe"
                    else ", or lower --min-count, raise --max-size, or use subwords (--bpe)"
                )
            )
        if split.literal_ends:
            yield (
                f"the {name} text contains </s> {split.literal_ends:,} times, and each counts as a "
                "second line end; remove </s> and <s> from the text"
            )
