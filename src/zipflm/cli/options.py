"""Arguments and options that several commands have, described once."""

from __future__ import annotations

from typing import Annotated

import typer

from zipflm.training import STALL_SECONDS as STALL_SECONDS

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to it, e.g. decoder.num_layers=8, or @file with such lines (zipflm config)."
    ),
]
Run = Annotated[str, typer.Argument(help="A run folder, or one of its checkpoints.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(help="Of a run: newest (if not given), best or a number of updates."),
]
Block = Annotated[
    int | None, typer.Option(help="Tokens the model sees at once; the run's own unless given.")
]
Context = Annotated[
    int | None,
    typer.Option(help="Tokens before each part of a text that is longer than the block."),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:N or mps; unless given, a CUDA GPU if there is one."),
]
StallSeconds = Annotated[
    float,
    typer.Option(min=1, help="Stop all processes if one does not answer for this many seconds."),
]
Dtype = Annotated[str, typer.Option(help="Of weights and products: float32, bfloat16 or float16.")]
Errors = Annotated[
    str, typer.Option(help="On NUL or bytes that are no text: strict (stop) or replace.")
]
Encoding = Annotated[
    str,
    typer.Option(help="Of the text: utf-8, latin-1, cp1252, utf-16 or another that Python has."),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="How raw text becomes words: whitespace, words (punctuation split off) or wikitext "
        "(prose in the form of WikiText); whitespace unless given."
    ),
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Lowercase all words.")]
