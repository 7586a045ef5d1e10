"""The command that trains a model."""

from __future__ import annotations

from typing import Annotated

import typer

from zipflm.cli.app import (
    STALL_SECONDS,
    Device,
    Overrides,
    Recipe,
    StallSeconds,
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
    preset: Annotated[
        str | None, typer.Argument(help="What to train, e.g. tiny/ADP-T; zipflm info lists them.")
    ] = None,
    overrides: Overrides = None,
    *,
    data: Annotated[str, typer.Option(help="The data folder, from `zipflm prepare`.")],
    out: Annotated[str, typer.Option(help="The run folder to make, or to continue.")],
    from_run: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A run or checkpoint whose model and weights to start from instead of a preset, "
            "on data prepared with its vocabulary.",
        ),
    ] = None,
    recipe: Recipe = "paper",
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
    from zipflm import api

    changes = overrides or []
    if from_run is not None and preset is not None and "=" in preset:
        changes, preset = [preset, *changes], None
    api.train(
        preset,
        changes,
        data=data,
        out=out,
        recipe=recipe,
        from_run=from_run,
        resume=resume,
        resume_if_any=resume_if_any,
        keep=keep,
        other_text=other_text,
        device=device,
        stall_seconds=stall_seconds,
    )
