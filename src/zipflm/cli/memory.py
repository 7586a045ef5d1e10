"""`zipflm memory build` and `memory tune`."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

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
    arguments,
    cleanup_on_sigterm,
    command,
    echo,
    show_progress,
)

memory_app: typer.Typer = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Build and tune memories: caches of recent tokens, and stores for nearest neighbors.",
)
app.add_typer(memory_app, name="memory")


@command(
    "zipflm memory build runs/first --data data/words --out stores/first",
    "zipflm memory build runs/first --data data/words --out stores/part --max-keys 5M",
    group=memory_app,
)
def build(
    ctx: typer.Context,
    run: Run,
    *,
    data: Annotated[str, Option(help="Data folder whose tokens are stored.")],
    out: Annotated[str, Option(help="Store folder to create or continue.")],
    split: Annotated[str, Option(help="Split to store: train, valid or test.")] = "train",
    max_keys: Annotated[int | None, Size("Store only the first N tokens, e.g. 5M.", "all")] = None,
    dtype: Annotated[str, Option(help="Data type of the keys: float16 or float32.")] = "float16",
    index: Annotated[
        bool, Option("--index", help="Build an index for search on a CPU (needs faiss).")
    ] = False,
    block: Block = None,
    context: Annotated[
        int | None,
        Option(
            help="Number of tokens at the start of each block that are context and not stored.",
            show_default="from the run; in break modes none and complete, at least 32 or, if "
            "smaller, a quarter of the block",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
) -> None:
    """Store every token of a text with the hidden state that predicts it.

    Run the same command again to continue an interrupted build.
    """
    from zipflm import api

    with cleanup_on_sigterm(), show_progress():
        store = api.build_memory(**arguments(ctx))
    echo(f"{out}: {store.plan.keys:,} keys of {store.plan.dim} numbers, {store.plan.dtype}")
    if store.recall is not None:
        echo(f"the index finds {store.recall:.1%} of the 1,024 nearest keys")


@command(
    "zipflm memory tune runs/first --data data/words",
    "zipflm memory tune runs/first --data data/words --memory stores/first --memory cache",
    "zipflm memory tune runs/first --data data/words --figure windows.svg",
    group=memory_app,
)
def tune(
    ctx: typer.Context,
    run: Run,
    *,
    data: Annotated[str, Option(help="Data folder to tune on.")],
    split: Annotated[str, Option(help="Split to tune on: train or valid.")] = "valid",
    memory: Memory = None,
    figure: Annotated[
        str | None, Option(help="Also plot perplexity against cache size to this file.")
    ] = None,
    block: Block = None,
    context: Context = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Tune the weight and temperature of memories (by default a cache), and the window of a cache.

    The values are saved in the run folder (cache) or in the store, and become the defaults. A cache
    with a different window, such as cache:2000, also uses the tuned weight and temperature.
    """
    import json
    from dataclasses import asdict
    from pathlib import Path

    from zipflm import api
    from zipflm.memory.tuning import draw_windows, tunes_window
    from zipflm.messages import require_figure

    memories = memory or ["cache"]
    if figure is not None:
        require_figure(Path(figure))
        if not any(map(tunes_window, memories)):
            raise ValueError("--figure: needs a cache without a window; use --memory cache")
    with show_progress():
        options = arguments(ctx, "figure", "as_json") | {"memory": memories}
        result = api.tune_memory(**options)
    if as_json:
        echo(json.dumps(asdict(result), indent=1))
    else:
        echo(f"perplexity {result.without:9.4f}  without memories")
        for trial in result.trials:
            mark = "  chosen" if trial in result.chosen else ""
            echo(f"perplexity {trial.perplexity:9.4f}  {trial.name}{mark}")
    if figure is not None:
        draw_windows(result, Path(figure))
