"""`zipflm train`: train a model."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from zipflm.cli.app import (
    STALL_SECONDS,
    Device,
    Overrides,
    Recipe,
    StallSeconds,
    arguments,
    command,
)


@command(
    "zipflm train tiny/ADP-T --data data/words --out runs/first",
    "zipflm train demo/ADP-T --data data/words --out runs/short training.max_updates=100",
    "zipflm train tiny/ADP-T --data data/words --out runs/first --resume",
    "zipflm train --from runs/first --data data/other --out runs/adapted",
    "torchrun --nproc-per-node 8 -m zipflm train wikitext-103/ADP-T --data ... --out ...",
)
def train(
    ctx: typer.Context,
    preset: Annotated[
        str | None, Argument(help="Model to train, e.g. tiny/ADP-T. `zipflm info` lists presets.")
    ] = None,
    overrides: Overrides = None,
    *,
    data: Annotated[str, Option(help="Data folder from `zipflm prepare`.")],
    out: Annotated[str, Option(help="Run folder to create or resume.")],
    from_run: Annotated[
        str | None,
        Option(
            "--from",
            help="Start from the model and weights of this run or checkpoint instead of a preset. "
            "Prepare the data with its vocabulary.",
        ),
    ] = None,
    recipe: Recipe = "paper",
    resume: Annotated[
        bool, Option("--resume", help="Resume from the newest checkpoint in --out.")
    ] = False,
    resume_if_any: Annotated[
        bool,
        Option(
            "--resume-if-any",
            help="Resume if --out has a run, otherwise start a new one. Use this with torchrun "
            "--max-restarts and job schedulers that restart failed commands.",
        ),
    ] = False,
    keep: Annotated[
        int,
        Option(
            min=0, help="Number of recent checkpoints to keep, in addition to the best (0: all)."
        ),
    ] = 3,
    other_text: Annotated[
        bool, Option("--other-text", help="When resuming: allow a different training text.")
    ] = False,
    device: Device = None,
    stall_seconds: StallSeconds = STALL_SECONDS,
) -> None:
    """Train a model. Use torchrun to train on several devices.

    After the first update, Ctrl-C or SIGTERM saves a checkpoint and exits with status 130. With a
    single process, a second Ctrl-C exits immediately without saving.
    """
    from zipflm import api

    settings = arguments(ctx)
    if from_run and preset and ("=" in preset or preset.startswith("@")):  # not a preset
        settings |= {"preset": None, "overrides": [preset, *(overrides or [])]}
    api.train(**settings)
