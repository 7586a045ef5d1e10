"""Predict memory, traffic and speed of training on many devices from measurements on one.

    python benchmarks/scale_model.py             # a table of large runs
    python benchmarks/scale_model.py --check     # predict and measure 1 and 2 CPU processes

Memory and traffic are in bytes per device, by part and by collective operation. The time of an
update is the time of the arithmetic, at the measured rate of one device, plus the time of the
traffic that does not overlap with the arithmetic. `Device` has measured values, and `Links` has
the vendor's; everything else is derived. Tests compare the bytes with real processes;
`--check` compares the times.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from zipflm.config import Config, Nesterov, Tie
from zipflm.distributed import processes
from zipflm.presets import from_name
from zipflm.settings import override
from zipflm.training.throughput import flops_per_token

STEP = Path(__file__).with_name("training_step.py")


@dataclass(frozen=True)
class Device:
    """Measurements of one device."""

    name: str
    flops: float
    """Operations per second of full training steps, as counted by `flops_per_token`."""
    workspace: float
    """Temporary bytes of the loss."""


H200 = Device(
    # wikitext-103/ADP-T, 65,536 tokens: 347,001 tokens/s of 1.4 billion operations each, 32.14 GB;
    # 17.59 GB with 32,768 tokens (docs/results/speed-h200.json).
    name="NVIDIA H200, bfloat16, compiled",
    flops=347_001 * 1.402e9,
    workspace=0.70e9,
)


@dataclass(frozen=True)
class Links:
    """Bytes per second that a device can send in each direction, and devices per machine."""

    inside: float
    between: float
    devices: int

    def speed(self, world: int) -> float:
        """Return the speed of a ring through all devices, which is that of its slowest link."""
        return self.inside if world <= self.devices else self.between


# NVLink 4: 900 GB/s in both directions; one 400 Gb/s port of InfiniBand NDR per device.
CLUSTER = Links(inside=450e9, between=50e9, devices=8)


@dataclass(frozen=True)
class Case:
    """A run: the model, the number of devices and the kind of parallelism."""

    label: str
    config: Config
    world: int
    tokens: int
    """Tokens per device and batch."""
    device: Device = H200
    links: Links = CLUSTER
    events: float = 0.0
    """Tokens of the full training, to estimate its hours (0: no estimate)."""

    @property
    def accumulated(self) -> int:
        """Number of batches per device and update."""
        return max(self.config.training.tokens_per_update // (self.tokens * self.world), 1)

    @property
    def is_bfloat16(self) -> bool:
        return self.config.training.dtype == "bfloat16"


@dataclass(frozen=True)
class Weights:
    """Numbers of parameters."""

    tables: int
    """In the tables of words and tail bands, which `training.tables=sharded` shards."""
    layers: int
    """In all decoder layers."""
    others: int

    @property
    def all(self) -> int:
        return self.tables + self.layers + self.others


def weights(config: Config) -> Weights:
    parts = config.params_by_part()
    rows = (".embedding", ".table", ".clusters")
    tables = sum(number for part, number in parts.items() if any(row in part for row in rows))
    return Weights(
        tables, parts["decoder.layers"], sum(parts.values()) - tables - parts["decoder.layers"]
    )


def states_per_weight(config: Config) -> int:
    """Return the maximum number of optimizer states per weight."""
    return 1 if isinstance(config.training.optimizer, Nesterov) else 2


def num_held(case: Case) -> float:
    """Return the number of parameters whose weight, gradient and state a device holds."""
    size, training = weights(case.config), case.config.training
    sharded = size.tables if training.tables == "sharded" else 0
    rest = size.all - sharded
    return sharded / case.world + (rest / case.world if training.parallel == "fsdp" else rest)


def memory(case: Case) -> dict[str, float]:
    """Return the peak bytes per device during an update, by part."""
    config, own = case.config, num_held(case)
    size, training = weights(config), config.training
    element_bytes = 2 if case.is_bfloat16 else 4
    parts = {
        "weights": 4 * own,
        "gradients": 4 * own,
        "optimizer": 4 * own * states_per_weight(config),
        "activations": activations(case),
        "loss": case.device.workspace,
    }
    if training.parallel == "fsdp" and case.world > 1:
        # Two layers at a time, one of them prefetched, and the input and output layers.
        layer = size.layers / config.decoder.num_layers
        tables = 0 if training.tables == "sharded" else size.tables
        parts["gathered"] = element_bytes * (2 * layer + tables + size.others)
    elif case.is_bfloat16:
        parts["bfloat16 copies"] = 2 * own
    if training.tables == "sharded" and case.world > 1:
        tokens = case.tokens * case.world
        parts["vectors of all devices"] = element_bytes * tokens * max(table_widths(config))
    return parts


def activations(case: Case) -> float:
    """Return the bytes kept for the backward pass (see tests/benchmarks/test_recompute.py),
    including dropout masks of one byte per element."""
    decoder, element_bytes = case.config.decoder, 2 if case.is_bfloat16 else 4
    heads = 4 * decoder.num_heads
    match case.config.training.recompute:
        case "layer":
            kept = element_bytes * 2 * decoder.dim + heads
        case "attention":
            kept = element_bytes * (4 * decoder.dim + decoder.ffn_dim) + heads + 8 + decoder.dim
        case _:
            kept = (
                element_bytes * (8 * decoder.dim + decoder.ffn_dim) + heads + 16 + 2 * decoder.dim
            )
    return case.tokens * decoder.num_layers * kept


def traffic(case: Case) -> dict[str, float]:
    """Return the bytes that a device sends per update, by collective operation.

    Collectives are rings, in which a device sends (world - 1) / world of the data per pass.
    """
    config, world = case.config, case.world
    if world == 1:
        return {}
    size, training = weights(config), config.training
    sharded = size.tables if training.tables == "sharded" else 0
    rest, hops = size.all - sharded, (world - 1) / world
    element_bytes = 2 if case.is_bfloat16 else 4
    sent: dict[str, float] = {}
    if training.parallel == "fsdp":
        # Weights are gathered again for the backward pass, except those outside of the layers if
        # tables are sharded, and those of the last layer.
        once = size.others if sharded else _output_alone(config)
        gathered = 2 * rest - once
        sent["all-gather of weights"] = case.accumulated * hops * element_bytes * gathered
        # Accumulated gradients are exchanged in float32.
        sent["reduce-scatter of gradients"] = (
            hops * (element_bytes if case.accumulated == 1 else 4) * rest
        )
    else:
        sent["all-reduce of gradients"] = 2 * hops * 4 * rest
    if sharded:
        tokens = case.accumulated * case.tokens * (world - 1)
        widths = table_widths(config)
        # Forward and backward, for the input and for every band of the output.
        sent["vectors of words"] = 4 * sum(widths) * element_bytes * tokens
        sent["ids and statistics"] = (16 + 16 * len(widths)) * tokens
    return sent


def _output_alone(config: Config) -> int:
    """Return the number of parameters of an untied output layer; 0 if it is tied."""
    parts = config.params_by_part().items()
    is_tied = config.tie != Tie.NONE
    return 0 if is_tied else sum(number for part, number in parts if part.startswith("output."))


def table_widths(config: Config) -> tuple[int, ...]:
    """Return the widths of the bands, or of the single table."""
    bands = config.output_bands
    return bands.widths if bands is not None else (config.output.dim,)


def zipf(vocab_size: int) -> NDArray[np.int64]:
    """Return counts of ids that follow Zipf's law."""
    return (1e12 / np.arange(1, vocab_size + 1)).astype(np.int64)


def operations_per_token(config: Config) -> float:
    """Return the operations per token of a training step without recomputation."""
    return flops_per_token(config, zipf(config.vocab_size), config.batches.block)


@dataclass(frozen=True)
class Times:
    """Seconds per update."""

    compute: float
    exchange: float

    @property
    def expected(self) -> float:
        """The exchange overlaps with the backward pass, which is two thirds of the arithmetic."""
        return self.compute + max(0.0, self.exchange - self.compute * 2 / 3)


def times(case: Case) -> Times:
    tokens = case.accumulated * case.tokens
    compute = tokens * operations_per_token(case.config) / case.device.flops
    exchange = sum(traffic(case).values()) / case.links.speed(case.world)
    return Times(compute, exchange)


def tokens_per_second(case: Case, seconds: float) -> float:
    return case.world * case.accumulated * case.tokens / seconds


def cases() -> list[Case]:
    one = _trained("wikitext-103/ADP-T", 65_536)
    very_large = _trained("billion-word/ADP-T/very-large", 64 * 2048)
    many = override(very_large, ["training.tokens_per_update=524288"])
    catalog = _catalog_model(512 * 8192)
    full = _catalog_model(512 * 8192, full=True)
    events = 100e9
    return [
        Case("WikiText-103, ADP-T", one, 1, 65_536),
        Case("Billion Word very large, DDP", very_large, 64, 2048),
        Case("the same, FSDP", _with(very_large, "parallel=fsdp"), 64, 2048),
        Case("the same, 524,288 tokens per update", _with(many, "parallel=fsdp"), 64, 8192),
        Case("10 million items, ADP-T, DDP", catalog, 512, 8192, events=events),
        Case("the same, FSDP", _with(catalog, "parallel=fsdp"), 512, 8192, events=events),
        Case(
            "the same, tables sharded",
            _with(catalog, "tables=sharded"),
            512,
            8192,
            events=events,
        ),
        Case("10 million items, SM-T, DDP", full, 512, 8192, events=events),
        Case("the same, tables sharded", _with(full, "tables=sharded"), 512, 8192, events=events),
    ]


def _trained(name: str, tokens: int) -> Config:
    return override(
        from_name(name),
        ["training.dtype=bfloat16", "training.compile=true"]
        + [f"training.tokens_per_update={tokens}"],
    )


def _catalog_model(tokens: int, *, full: bool = False) -> Config:
    """Return the config of a model of ten million items. Adaptive layers have cutoffs at 1% and 10%
    of the items."""
    config = _trained("wikitext-103/SM-T" if full else "wikitext-103/ADP-T", tokens)
    cutoffs = "[100000,1000000]"
    bands = [] if full else [f"input.cutoffs={cutoffs}", f"output.cutoffs={cutoffs}"]
    return override(config, ["vocab_size=10000000", *bands])


def _with(config: Config, *settings: str) -> Config:
    return override(config, [f"training.{setting}" for setting in settings])


def table(all_cases: Sequence[Case]) -> list[str]:
    """Return the lines of a Markdown table with one line per case."""
    lines = [
        "| run | devices x tokens x accumulated | memory per device | sent per update | compute + "
        "exchange | tokens/s | full training |",
        "| --- | --- | --- | --- | --- | ---: | ---: |",
    ]
    for case in all_cases:
        spent = times(case)
        rate = tokens_per_second(case, spent.expected)
        hours = f"{case.events / rate / 3600:.1f} hours" if case.events else ""
        lines.append(
            f"| {case.label} | {case.world} x {case.tokens:,} x {case.accumulated} "
            f"| {_in_gb(memory(case))} | {_in_gb(traffic(case))} "
            f"| {spent.compute * 1e3:.0f} + {spent.exchange * 1e3:.0f} ms | {rate:,.0f} | {hours} |"
        )
    return lines


def _in_gb(parts: dict[str, float]) -> str:
    if not parts:
        return "nothing"
    named = ", ".join(f"{part} {size / 1e9:.2g}" for part, size in parts.items())
    return f"**{sum(parts.values()) / 1e9:.3g} GB**: {named}"


_PLAIN = ["decoder.dropout=0", "decoder.attention_dropout=0", "decoder.relu_dropout=0"]
_PLAIN += ["output.tail_dropout=0", "training.tokens_per_update=2048", "batches.tokens=1024"]
_PLAIN += ["batches.block=128", "batches.eval_block=128"]
SOURCE = ["vocab_size=8000", "input.cutoffs=[1000,4000]", "output.cutoffs=[1000,4000]"]
SOURCE += ["decoder.dim=192", "decoder.ffn_dim=768", "decoder.num_layers=3", "input.dim=192"]
SOURCE += ["output.dim=192", *_PLAIN]
"""Overrides of a model whose speed is measured to predict that of `TARGET`."""
TARGET = ["vocab_size=20000", "input.cutoffs=[2000,8000]", "output.cutoffs=[2000,8000]"]
TARGET += ["decoder.dim=256", "decoder.ffn_dim=1024", "decoder.num_layers=4", "input.dim=256"]
TARGET += ["output.dim=256", *_PLAIN]


@dataclass(frozen=True)
class Checked:
    """Predicted and measured tokens per second."""

    what: str
    predicted: float
    measured: float


def check(source: list[str] = SOURCE, target: list[str] = TARGET, steps: int = 8) -> list[Checked]:
    """Predict the speed of one model from that of another and the speed of the links."""
    alone = _flops(source, _measured([source], steps=steps)[0])
    both = min(_flops(source, rate) for rate in _measured([source] * 2, steps=steps))
    link = _measured_link()
    results = []
    for what, world, settings in (
        ("1 process", 1, []),
        ("2 processes, DDP", 2, []),
        ("2 processes, FSDP", 2, ["training.parallel=fsdp"]),
    ):
        config = override(from_name("tiny/ADP-T"), [*target, *settings])
        device = Device("one core", alone if world == 1 else both, 0.0)
        links = Links(inside=link, between=link, devices=2)
        case = Case(what, config, world, config.batches.tokens, device, links)
        # gloo's threads share the cores, so nothing overlaps.
        spent = times(case).compute + times(case).exchange
        measured = _measured([[*target, *settings]] * world, together=world > 1, steps=steps)[0]
        results.append(Checked(what, tokens_per_second(case, spent), measured))
    return results


def _flops(overrides: list[str], rate: float) -> float:
    return rate * operations_per_token(override(from_name("tiny/ADP-T"), overrides))


def _measured(models: Sequence[list[str]], *, together: bool = False, steps: int) -> list[float]:
    """Return the tokens per second of simultaneous processes. If `together`, they form one run."""
    commands = [
        [str(STEP), "--preset", "tiny/ADP-T", "--device", "cpu", "--steps", str(steps), *model]
        for model in models
    ]
    return [json.loads(text)["tokens_per_second"] for text in _outputs(commands, together)]


def _measured_link() -> float:
    """Return the bytes per second that each of two processes sends in an all-reduce."""
    commands = [[str(Path(__file__)), "--link"]] * 2
    return float(_outputs(commands, True)[0])


def _outputs(commands: Sequence[list[str]], together: bool) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank, command in enumerate(commands):
        environment = {"OMP_NUM_THREADS": "1"}
        if together:
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
            environment |= {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1"}
        children.append(
            subprocess.Popen(
                [sys.executable, *command],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise ValueError("a measuring process failed; see its error above")
    return outputs


def _print_link(megabytes: int = 16, rounds: int = 5) -> None:
    tensor = torch.ones(megabytes << 18)
    with processes.started("cpu") as process:
        dist.all_reduce(tensor)
        start = time.perf_counter()
        for _ in range(rounds):
            dist.all_reduce(tensor)
        seconds = (time.perf_counter() - start) / rounds
    sent = 2 * (process.world_size - 1) / process.world_size * (megabytes << 20)
    print(sent / seconds)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="predict and measure on this CPU")
    parser.add_argument("--link", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.link:
        _print_link()
    elif options.check:
        for result in check():
            ratio = result.predicted / result.measured
            print(
                f"{result.what}: predicted {result.predicted:,.0f}, measured "
                f"{result.measured:,.0f} tokens/s ({ratio:.2f})"
            )
    else:
        print("\n".join(table(cases())))


if __name__ == "__main__":
    main()
