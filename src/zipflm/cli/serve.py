"""`zipflm serve`: an HTTP server for runs."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from zipflm.cli.app import Checkpoint, Device, Dtype, Memory, command, print_error


@command(
    "zipflm serve runs/adp-t",
    "zipflm serve runs/adp-t runs/sm --port 9000",
    "zipflm serve runs/adp-t --host 0.0.0.0 --api-key-file keys.txt",
)
def serve(
    runs: Annotated[
        list[str] | None,
        Argument(
            help="Runs, checkpoints, exported folders or Hugging Face model ids. The first is the "
            "default model.",
            show_default="state-of-the-union, included in zipflm",
        ),
    ] = None,
    *,
    host: Annotated[
        str, Option(help="Address to bind to. Use 0.0.0.0 to accept remote connections.")
    ] = "127.0.0.1",
    port: Annotated[
        int, Option(min=0, max=65535, help="Port to listen on (0: any free port).")
    ] = 8000,
    max_batch_tokens: Annotated[
        int, Option(min=1, help="Maximum number of tokens per batch.")
    ] = 8192,
    max_text_tokens: Annotated[
        int, Option(min=1, help="Maximum number of tokens per text, prompt included.")
    ] = 4096,
    max_waiting: Annotated[
        int, Option(min=1, help="Maximum queue length. Further requests are rejected.")
    ] = 256,
    api_key_file: Annotated[
        str | None, Option(help="File of API keys, one per line. Without it, no key is required.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, Option(help="Allow browser requests from this origin. Can be repeated.")
    ] = None,
    memory: Memory = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = "float32",
) -> None:
    """Serve runs over HTTP: OpenAI-style completions, per-word scores and a web page at /."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        needed = "pip install fastapi prometheus_client uvicorn"
        raise ValueError(f"zipflm serve needs {error.name}: {needed}") from None
    from zipflm.serving.server import serve as serve_runs
    from zipflm.serving.worker import Limits

    limits = Limits(
        max_batch_tokens=max_batch_tokens,
        max_text_tokens=max_text_tokens,
        max_waiting=max_waiting,
    )
    serve_runs(
        runs or ["state-of-the-union"],
        host=host,
        port=port,
        device=device,
        dtype=dtype,
        checkpoint=checkpoint,
        memory=memory or (),
        limits=limits,
        api_key_file=api_key_file,
        origins=cors_origin or (),
        say=print_error,
    )
