"""Commands that make things: data folders and runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from zipflm.cli.app import (
    INTERRUPTED,
    STALL_SECONDS,
    Command,
    Device,
    Encoding,
    Errors,
    Lowercase,
    Overrides,
    Split,
    StallSeconds,
    command,
    complain,
    expanded,
    removing_what_is_unfinished,
    say,
)

if TYPE_CHECKING:
    from zipflm.config import Config, Splitting
    from zipflm.data.folder import DataFolder


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
    split: str | None, lowercase: bool, vocabulary: str | None = None, codes: str | None = None
) -> Splitting:
    """The rule that was asked for; as far as none was, that of a vocabulary's data folder."""
    from zipflm.config import PLAIN, Rule, Splitting
    from zipflm.data.folder import CODES_FILE, FACTS_FILE, read_facts

    if split is not None and split not in get_args(Rule):
        raise ValueError(f"--split {split}: choose from {', '.join(get_args(Rule))}")
    kept, folder = PLAIN, Path(vocabulary or "").parent
    if vocabulary is not None and (folder / FACTS_FILE).is_file():
        facts = read_facts(folder)
        kept = facts.splitting
        if facts.bpe is not None and codes is None:
            raise ValueError(
                f"--vocabulary {vocabulary}: holds sub-words; add --bpe-codes {folder / CODES_FILE}"
            )
    return Splitting(split or kept.rule, lowercase or kept.lowercase)  # type: ignore[arg-type]


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
    "zipflm prepare 'articles/*.txt.gz' --valid held-out.txt --split words --out data/prose",
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
        int | None, typer.Option(help="Ids at most, specials included, before padding to 8.")
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="Take this vocabulary.txt, with its data folder's --split, or fairseq's dict.txt."
        ),
    ] = None,
    bpe: Annotated[int | None, typer.Option(help="Learn so many byte-pair merges.")] = None,
    bpe_codes: Annotated[
        str | None, typer.Option(help="Split words with these subword-nmt codes.")
    ] = None,
    split: Split = None,
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
) -> None:
    """Make a data folder from text, from a corpus by name, or from sequences of integers."""
    from zipflm.data.prepare import Options, doubts, prepare_by_name, progress_bar, summary
    from zipflm.data.prepare import prepare as make
    from zipflm.data.scan import default_processes

    options = Options(
        min_count=min_count,
        max_size=max_size,
        vocabulary=vocabulary,
        bpe=bpe,
        bpe_codes=bpe_codes,
        splitting=splitting_of(split, lowercase, vocabulary, bpe_codes),
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
    say(summary(folder))
    for doubt in doubts(folder):
        complain(f"warning: {doubt}")


@command(
    "zipflm train tiny/ADP-T --data data/words --out runs/first",
    "zipflm train demo/ADP-T --data data/words --out runs/short training.max_updates=100",
    "zipflm train tiny/ADP-T --data data/words --out runs/first --resume",
    "torchrun --nproc-per-node 8 -m zipflm train wikitext-103/ADP-T --data ... --out ...",
)
def train(
    preset: Annotated[
        str, typer.Argument(help="What to train, e.g. tiny/ADP-T; zipflm info lists them.")
    ],
    overrides: Overrides = None,
    *,
    data: Annotated[str, typer.Option(help="The data folder, from `zipflm prepare`.")],
    out: Annotated[str, typer.Option(help="The run folder to make, or to continue.")],
    recipe: Annotated[
        str, typer.Option(help="paper (as published) or modern (Muon, bfloat16, rotary ...).")
    ] = "paper",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run in --out.")
    ] = False,
    resume_if_any: Annotated[
        bool,
        typer.Option(
            "--resume-if-any",
            help="The same, and start where there is no run yet: for torchrun --max-restarts, and "
            "queues that give a command again.",
        ),
    ] = False,
    keep: Annotated[
        int, typer.Option(min=0, help="Checkpoints to keep besides the best; 0 keeps all.")
    ] = 3,
    other_text: Annotated[
        bool,
        typer.Option("--other-text", help="With --resume: go on with another training text."),
    ] = False,
    device: Device = None,
    stall_seconds: StallSeconds = STALL_SECONDS,
) -> None:
    """Train a model; with torchrun, on many devices.

    Ctrl-C or SIGTERM saves and stops it: exit status 130. A second one leaves at once, and so does
    the first while there is nothing to save.
    """
    from zipflm.data.folder import DataFolder
    from zipflm.presets.recipes import resolve
    from zipflm.runs.folder import RunFolder
    from zipflm.training import distributed
    from zipflm.training.trainer import train as run

    def read() -> tuple[DataFolder, Config]:
        place = RunFolder(Path(out))
        if resume and not resume_if_any and not place.holds_a_run:
            raise ValueError(
                f"--resume: there is no run in {out}; check --out, or start one without --resume "
                "(or with --resume-if-any, which does either)"
            )
        folder = DataFolder.open(data)
        return folder, resolve(
            preset,
            recipe,
            expanded(overrides),
            len(folder.vocabulary),
            on_cpu=process.device.type == "cpu",
            held=place.config() if (resume or resume_if_any) and place.holds_a_run else None,
        )

    with distributed.started(device, stall_seconds) as process:
        folder, config = distributed.done_by_all(read, process)
        is_finished = run(
            config,
            folder,
            Path(out),
            resume=resume or resume_if_any,
            keep=keep,
            device=device,
            other_text=other_text,
        )
    if not is_finished:
        raise typer.Exit(INTERRUPTED)
