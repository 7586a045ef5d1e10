"""The command that makes a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

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

if TYPE_CHECKING:
    from zipflm.config import Splitting


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


def splitting_of(
    words: str | None, lowercase: bool, vocabulary: str | None = None, codes: str | None = None
) -> Splitting:
    """The rule that was asked for; as far as none was, that of a vocabulary's data folder."""
    from zipflm.config import PLAIN, Rule, Splitting
    from zipflm.data.folder import CODES_FILE, FACTS_FILE, read_facts

    if words is not None and words not in get_args(Rule):
        raise ValueError(f"--words {words}: choose from {', '.join(get_args(Rule))}")
    kept, folder = PLAIN, Path(vocabulary or "").parent
    if vocabulary is not None and (folder / FACTS_FILE).is_file():
        facts = read_facts(folder)
        kept = facts.splitting
        if facts.bpe is not None and codes is None:
            raise ValueError(
                f"--vocabulary {vocabulary}: holds sub-words; add --bpe-codes {folder / CODES_FILE}"
            )
    return Splitting(words or kept.rule, lowercase or kept.lowercase)  # type: ignore[arg-type]


def _scheduler(engine: str, scheduler: str | None) -> str | None:
    """The scheduler that the texts are read by, if not by processes of ours."""
    if engine not in ("processes", "dask"):
        raise ValueError(f"--engine {engine}: choose from processes, dask")
    if engine == "processes" and scheduler is not None:
        raise ValueError(f"--scheduler {scheduler}: goes with --engine dask")
    return None if engine == "processes" else scheduler or "local"


def _training_text(texts: list[str] | None, ids: list[str] | None) -> list[str]:
    if ids and texts:
        raise ValueError(f"{texts[0]}: text or --ids, not both; repeat --ids for several files")
    return ids or texts or []


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
        str | None, typer.Option(help="Names of these integers, a line each, that of 0 first.")
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(help="Rarer words are unknown; 3 unless given, 1 for sub-words and ids."),
    ] = None,
    max_size: Annotated[
        int | None, Size("Ids at most, specials included, before padding to 8.")
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="Take this vocabulary.txt, with its data folder's --words, or fairseq's dict.txt."
        ),
    ] = None,
    bpe: Annotated[int | None, Size("Learn so many byte-pair merges, e.g. 32k.")] = None,
    bpe_codes: Annotated[
        str | None, typer.Option(help="Split words with these subword-nmt codes.")
    ] = None,
    words: Words = None,
    lowercase: Lowercase = False,
    errors: Errors = "strict",
    encoding: Encoding = "utf-8",
    processes: Annotated[
        int | None, typer.Option(help="Processes that read text; all cores unless given.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Who reads the texts: processes, or dask (a cluster).")
    ] = "processes",
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="With dask: a scheduler's address, e.g. tcp://10.0.0.1:8786, or local (if not "
            "given): a cluster of --processes here."
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(help="Where downloads are kept; .cache/zipflm at home unless given."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a data folder from text, from a corpus by name, or from sequences of integers."""
    from zipflm.data.folder import FACTS_FILE
    from zipflm.data.prepare import Options, doubts, prepare_by_name, progress_bar, summary
    from zipflm.data.prepare import prepare as make
    from zipflm.data.scan import default_processes

    options = Options(
        min_count=min_count,
        max_size=max_size,
        vocabulary=vocabulary,
        bpe=bpe,
        bpe_codes=bpe_codes,
        splitting=splitting_of(words, lowercase, vocabulary, bpe_codes),
        errors=errors,  # type: ignore[arg-type]  # checked there
        encoding=encoding,
        ids=bool(ids),
        names=names,
    )
    splits = {"train": _training_text(texts, ids), "valid": valid or [], "test": test or []}
    means: dict[str, Any] = {
        "processes": default_processes() if processes is None else processes,
        "scheduler": _scheduler(engine, scheduler),
    }
    with removing_what_is_unfinished(), progress_bar() as report:
        if corpus is None:
            folder = make(out, splits, options, report=report, **means)
        elif any(splits.values()):
            raise ValueError("--corpus brings its own texts: leave out the others")
        else:
            folder = prepare_by_name(out, corpus, options, cache=cache, report=report, **means)
    say((folder.path / FACTS_FILE).read_text(encoding="utf-8") if as_json else summary(folder))
    for doubt in doubts(folder):
        complain(f"warning: {doubt}")
