"""Commands that exchange models with Hugging Face's `transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from zipflm.cli.app import Checkpoint, Run, command, removing_what_is_unfinished, say


@contextmanager
def _naming_what_is_not_installed() -> Iterator[None]:
    """The extra `hf`, for which not everybody has a use."""
    try:
        yield
    except ImportError as error:
        raise ValueError(str(error)) from None


@command(
    "zipflm export-hf runs/adp-t --out hf/adp-t",
    "zipflm export-hf runs/adp-t --out hf/adp-t --checkpoint best --max-shard-size 500MB",
    name="export-hf",
)
def export_hf(
    run: Run,
    *,
    out: Annotated[str, typer.Option(help="The folder to make, for from_pretrained.")],
    checkpoint: Checkpoint = None,
    max_shard_size: Annotated[
        str, typer.Option(help="Of a file of weights, e.g. 500MB; larger models have several.")
    ] = "5GB",
) -> None:
    """Write a model, tokenizer and model card for transformers."""
    from pathlib import Path

    with _naming_what_is_not_installed():
        from zipflm.interop.huggingface.exchange import export_run
    from zipflm.runs.folder import parse_choice

    with removing_what_is_unfinished():
        exported = export_run(
            run, Path(out), checkpoint=parse_choice(checkpoint), max_shard_size=max_shard_size
        )
    say(
        f"{out}: {exported.config.name}, {exported.checkpoint.name}, "
        f"{exported.config.num_params():,} parameters, {len(exported.vocabulary):,} entries of "
        f"unit {exported.config.batches.unit}"
    )


@command(
    "zipflm import-hf hf/adp-t --out runs/adp-t-again",
    name="import-hf",
)
def import_hf(
    folder: Annotated[
        str, typer.Argument(help="Made by `zipflm export-hf`, or by save_pretrained.")
    ],
    *,
    out: Annotated[str, typer.Option(help="The run folder to make.")],
) -> None:
    """Make a run folder from a folder of transformers that holds a model of this package."""
    from pathlib import Path

    with _naming_what_is_not_installed():
        from zipflm.interop.huggingface.exchange import import_run
    with removing_what_is_unfinished():
        config = import_run(folder, Path(out))
    say(
        f"{out}: {config.name}, {config.num_params():,} parameters, "
        f"{config.vocab_size:,} entries of unit {config.batches.unit}"
    )
