"""Commands for memories on top of a model: build a store of neighbours, tune settings."""

from __future__ import annotations

from typing import Annotated

import typer

from zipflm.cli.app import (
    Block,
    Checkpoint,
    Commands,
    Context,
    Device,
    Json,
    Memory,
    Run,
    Size,
    app,
    command,
    removing_what_is_unfinished,
    say,
    showing_progress,
)

memory_app: typer.Typer = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Memories on top of a model: stores of nearest neighbours, tuned settings.",
)
app.add_typer(memory_app, name="memory")


@command(
    "zipflm memory build runs/first --data data/words --out stores/first",
    "zipflm memory build runs/first --data data/words --out stores/part --max-keys 5M",
    group=memory_app,
)
def build(
    run: Run,
    *,
    data: Annotated[str, typer.Option(help="The data folder to remember.")],
    out: Annotated[str, typer.Option(help="Folder of the store, new or to be continued.")],
    split: Annotated[str, typer.Option(help="Split of the data folder.")] = "train",
    max_keys: Annotated[
        int | None, Size("Number of tokens to remember, the first ones; all unless given.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of keys on disk: float16 or float32.")] = "float16",
    index: Annotated[
        bool | None,
        typer.Option(
            "--index/--no-index",
            help="Index for search on a CPU (needs faiss); unless given, for 2M keys or more.",
        ),
    ] = None,
    block: Block = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens of each block that are context and not stored; the run's own unless "
            "given, but at least 32 or a quarter of the block."
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
) -> None:
    """Store the model's vector before every word of a text, and the word.

    The same command continues a build that was interrupted.
    """
    from zipflm import api

    with removing_what_is_unfinished(), showing_progress():
        facts = api.build_memory(
            run,
            data=data,
            out=out,
            split=split,
            max_keys=max_keys,
            dtype=dtype,
            index=index,
            block=block,
            context=context,
            checkpoint=checkpoint,
            device=device,
            say=say,
        )
    say(f"{out}: {facts.plan.keys:,} keys of {facts.plan.dim} numbers, {facts.plan.dtype}")


@command(
    "zipflm memory tune runs/first --data data/words",
    "zipflm memory tune runs/first --data data/words --memory stores/first --memory cache",
    "zipflm memory tune runs/first --data data/words --figure windows.svg",
    group=memory_app,
)
def tune(
    run: Run,
    *,
    data: Annotated[str, typer.Option(help="The data folder.")],
    split: Annotated[str, typer.Option(help="Split of the data folder; never test.")] = "valid",
    memory: Memory = None,
    figure: Annotated[
        str | None,
        typer.Option(help="Draw perplexity against the size of the cache; not unless given."),
    ] = None,
    block: Block = None,
    context: Context = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Choose weight, temperature and window of memories on a valid set.

    They are written into the run folder (cache) or the store, and used from then on. Without
    --memory a cache is tuned.
    """
    import json
    from dataclasses import asdict
    from pathlib import Path

    from zipflm import api
    from zipflm.memory.tuning import draw_windows, require_drawable

    memory = memory or ["cache"]
    if figure is not None:
        require_drawable(memory, Path(figure))
    with showing_progress():
        result = api.tune_memory(
            run,
            data=data,
            split=split,
            memory=memory,
            block=block,
            context=context,
            checkpoint=checkpoint,
            device=device,
        )
    if figure is not None:
        draw_windows(result, Path(figure))
    if as_json:
        say(json.dumps(asdict(result), indent=1))
        return
    say(f"perplexity {result.without:9.4f}  without memories")
    for trial in result.trials:
        mark = "  chosen" if trial in result.chosen else ""
        say(f"perplexity {trial.perplexity:9.4f}  {trial.name}{mark}")
    for note in result.notes:
        say(f"note: {note}")
