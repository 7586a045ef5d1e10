"""The command that trains a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zipflm.cli.app import (
    INTERRUPTED,
    STALL_SECONDS,
    Device,
    Overrides,
    StallSeconds,
    command,
    expanded,
)

if TYPE_CHECKING:
    from zipflm.config import Config
    from zipflm.data.folder import DataFolder


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
