"""`zipflm export` and `import`: exchange models with transformers, and import them from fairseq."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from zipflm.cli.app import (
    Checkpoint,
    Json,
    Lowercase,
    Run,
    Words,
    cleanup_on_sigterm,
    command,
    echo,
)

if TYPE_CHECKING:
    from zipflm.config import Config


@command(
    "zipflm export runs/adp-t hf/adp-t",
    "zipflm export runs/adp-t hf/adp-t --checkpoint best --max-shard-size 500MB",
)
def export(
    run: Run,
    out: Annotated[str, Argument(help="Folder to create, for from_pretrained.")],
    *,
    format: Annotated[Literal["hf"], Option(help="Output format: hf (transformers).")] = "hf",
    checkpoint: Checkpoint = None,
    max_shard_size: Annotated[
        str, Option(help="Maximum size of a weights file; larger models are split.")
    ] = "5GB",
    as_json: Json = False,
) -> None:
    """Export a run as a transformers model with tokenizer and model card."""
    from zipflm.language.model import import_exchange
    from zipflm.runs.folder import parse_choice

    exchange = import_exchange()
    with cleanup_on_sigterm():
        exported = exchange.export_run(
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
        Argument(help="A folder from `zipflm export` or save_pretrained, or a fairseq *.pt file."),
    ],
    out: Annotated[str, Argument(help="Run folder to create.")],
    *,
    format: Annotated[
        Literal["hf", "fairseq"] | None,
        Option(help="Format of the source.", show_default="hf for a folder, fairseq for a file"),
    ] = None,
    dictionary: Annotated[
        str | None,
        Option("--dict", help="For fairseq (required): dict.txt of the training data."),
    ] = None,
    bpe_codes: Annotated[
        str | None, Option(help="For fairseq: subword-nmt codes of a model with BPE pieces.")
    ] = None,
    words: Words = None,
    lowercase: Lowercase = False,
    as_json: Json = False,
) -> None:
    """Create a run folder from a transformers or fairseq model."""
    if not os.path.exists(source):
        raise ValueError(f"{source}: no such file or folder; check the name")
    with cleanup_on_sigterm():
        if (format or ("hf" if os.path.isdir(source) else "fairseq")) == "hf":
            from zipflm.language.model import import_exchange

            config = import_exchange().import_run(source, Path(out))
        elif dictionary is None:
            raise ValueError(
                "--dict: missing; name the dict.txt of the data the model was trained on"
            )
        else:
            from zipflm.api import splitting_of
            from zipflm.interop.fairseq import import_run

            config = import_run(
                source,
                dictionary,
                Path(out),
                bpe_codes=bpe_codes,
                splitting=splitting_of(words, lowercase),
            )
    _show(config, out, as_json)


def _show(config: Config, out: str, as_json: bool, *, checkpoint: str | None = None) -> None:
    parameters, unit = config.num_params(), config.batches.unit
    if as_json:
        described = {
            "out": out,
            "name": config.name,
            "checkpoint": checkpoint,
            "parameters": parameters,
            "vocabulary": config.vocab_size,
            "unit": unit,
        }
        echo(json.dumps(described, indent=1))
        return
    name = config.name if checkpoint is None else f"{config.name}, {checkpoint}"
    echo(f"{out}: {name}, {parameters:,} parameters, vocabulary size {config.vocab_size:,}")
