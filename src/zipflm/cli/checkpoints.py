"""The command that puts the shards of a checkpoint together."""

from __future__ import annotations

from zipflm.cli.command import command
from zipflm.cli.common import removing_what_is_unfinished, say
from zipflm.cli.options import Checkpoint, Run


@command(
    "zipflm consolidate runs/large",
    "zipflm consolidate runs/large --checkpoint best",
)
def consolidate(run: Run, *, checkpoint: Checkpoint = None) -> None:
    """Make one file of the shards in which several processes saved a checkpoint."""
    from zipflm.runs import consolidation
    from zipflm.runs.folder import parse_choice

    with removing_what_is_unfinished():
        done = consolidation.consolidate(run, parse_choice(checkpoint))
    path = done.checkpoint.path
    if not done.num_shards:
        say(f"{path}: in one file already")
        return
    size = (path / done.checkpoint.weights_files[0]).stat().st_size / 1e6
    say(
        f"{path}: the shards of {done.num_shards} processes are one file, {size:,.1f} MB of weights"
    )
