"""Commands that exchange models with other packages: Hugging Face's transformers, and fairseq."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zipflm.cli.app import (
    Checkpoint,
    Json,
    Lowercase,
    Run,
    Words,
    command,
    removing_what_is_unfinished,
    say,
)

if TYPE_CHECKING:
    from zipflm.config import Config


@contextmanager
def _naming_what_is_not_installed() -> Iterator[None]:
    """The extra `hf`, for which not everybody has a use."""
    try:
        yield
    except ImportError as error:
        raise ValueError(str(error)) from None


@command(
    "zipflm export runs/adp-t hf/adp-t",
    "zipflm export runs/adp-t hf/adp-t --checkpoint best --max-shard-size 500MB",
)
def export(
    run: Run,
    out: Annotated[str, typer.Argument(help="The folder to make, for from_pretrained.")],
    *,
    format: Annotated[str, typer.Option(help="hf (transformers) is all there is.")] = "hf",
    checkpoint: Checkpoint = None,
    max_shard_size: Annotated[
        str, typer.Option(help="Of a file of weights, e.g. 500MB; larger models have several.")
    ] = "5GB",
    as_json: Json = False,
) -> None:
    """Write a model, tokenizer and model card for transformers."""
    if format != "hf":
        raise ValueError(f"--format {format}: choose from hf")
    with _naming_what_is_not_installed():
        from zipflm.interop.huggingface.exchange import export_run
    from zipflm.runs.folder import parse_choice

    with removing_what_is_unfinished():
        exported = export_run(
            run, Path(out), checkpoint=parse_choice(checkpoint), max_shard_size=max_shard_size
        )
    _show(exported.config, out, as_json, checkpoint=exported.checkpoint.name)


@command(
    "zipflm import hf/adp-t runs/adp-t-again",
    "zipflm import model.pt runs/published --dict dict.txt",
    name="import",
)
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of transformers, from `zipflm export` or save_pretrained; or a language "
            "model of fairseq, *.pt."
        ),
    ],
    out: Annotated[str, typer.Argument(help="The run folder to make.")],
    *,
    format: Annotated[
        str | None,
        typer.Option(help="hf or fairseq; unless given, a folder is of hf, a file of fairseq."),
    ] = None,
    dictionary: Annotated[
        str | None,
        typer.Option(
            "--dict",
            help="Of fairseq, which needs it: the dict.txt of the data it was trained on.",
        ),
    ] = None,
    bpe_codes: Annotated[
        str | None,
        typer.Option(help="Of fairseq: subword-nmt codes of a sub-word model, to score raw text."),
    ] = None,
    words: Words = None,
    lowercase: Lowercase = False,
    as_json: Json = False,
) -> None:
    """Make a run folder from a model that transformers or fairseq saved."""
    if format not in (None, "hf", "fairseq"):
        raise ValueError(f"--format {format}: choose from hf, fairseq")
    if not os.path.exists(source):
        raise ValueError(f"{source}: there is no such file or folder")
    if (format or ("hf" if os.path.isdir(source) else "fairseq")) == "hf":
        for option, value in (
            ("--dict", dictionary),
            ("--bpe-codes", bpe_codes),
            ("--words", words),
            ("--lowercase", lowercase),
        ):
            if value:
                raise ValueError(f"{option}: of fairseq models; {source} is read as one of hf")
        config = _import_hf(source, Path(out))
    elif dictionary is None:
        raise ValueError("--dict: missing; name the dict.txt of the data that fairseq trained on")
    else:
        from zipflm.api import splitting_of
        from zipflm.interop.fairseq import import_run

        config = import_run(
            source,
            dictionary,
            Path(out),
            bpe_codes=bpe_codes,
            splitting=splitting_of(words, lowercase),
        ).config
    _show(config, out, as_json)


def _show(config: Config, out: str, as_json: bool, *, checkpoint: str | None = None) -> None:
    parameters, unit = config.num_params(), config.batches.unit
    if as_json:
        facts = {
            "out": out,
            "name": config.name,
            "checkpoint": checkpoint,
            "parameters": parameters,
            "vocabulary": config.vocab_size,
            "unit": unit,
        }
        say(json.dumps(facts, indent=1))
        return
    name = config.name if checkpoint is None else f"{config.name}, {checkpoint}"
    say(f"{out}: {name}, {parameters:,} parameters, {config.vocab_size:,} entries of unit {unit}")


def _import_hf(folder: str, out: Path) -> Config:
    with _naming_what_is_not_installed():
        from zipflm.interop.huggingface.exchange import import_run
    with removing_what_is_unfinished():
        return import_run(folder, out)
