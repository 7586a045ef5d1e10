"""The command that serves runs over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from zipflm.cli.app import Checkpoint, Device, Dtype, Memory, command, complain


@command(
    "zipflm serve runs/adp-t",
    "zipflm serve runs/adp-t runs/sm --port 9000",
    "zipflm serve runs/adp-t --host 0.0.0.0 --api-key-file keys.txt",
)
def serve(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders or checkpoints; the first is the default.")
    ],
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine need another.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")
    ] = 8000,
    max_batch_words: Annotated[
        int, typer.Option(min=1, help="Words of all requests that are computed together.")
    ] = 8192,
    max_words: Annotated[
        int, typer.Option(min=1, help="Words of one text, with what is to be written.")
    ] = 4096,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; more are refused for now.")
    ] = 256,
    api_key_file: Annotated[
        str | None,
        typer.Option(
            help="Keys, one per line, of which every request needs one; if not given, none."
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="A site whose pages may use this service; can be repeated."),
    ] = None,
    memory: Memory = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Serve runs over HTTP: completions as OpenAI's, scores per word, a page at /."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        needed = "pip install fastapi prometheus_client uvicorn"
        raise ValueError(f"zipflm serve needs {error.name}: {needed}") from None
    from zipflm.serving.queue import Limits
    from zipflm.serving.server import serve as serve_runs

    limits = Limits(max_batch_words=max_batch_words, max_words=max_words, max_waiting=max_waiting)
    serve_runs(
        runs,
        host=host,
        port=port,
        device=device,
        dtype=dtype,
        checkpoint=checkpoint,
        memory=memory or (),
        limits=limits,
        api_key_file=api_key_file,
        origins=cors_origin or (),
        say=complain,
    )
