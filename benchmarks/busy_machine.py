"""Training speed on an idle and a busy CPU, for several OpenMP wait policies.

    python benchmarks/busy_machine.py --data DATA [--presets tiny/ADP-T] [-- key=value ...]

DATA is a folder made by `zipflm prepare`. Each row trains with one setting of the environment;
"default" is torch's behavior, and "zipflm" lets the package choose. Neighbors are other processes
in an endless loop: none, one, or one per core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

SETTINGS: dict[str, dict[str, str]] = {
    # libgomp's default.
    "default": {"GOMP_SPINCOUNT": "300000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 3000": {"GOMP_SPINCOUNT": "3000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "zipflm": {},
}
OPENMP = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")


@contextlib.contextmanager
def busy_neighbors(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(1)  # until they run
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def tokens_per_second(
    preset: str, data: Path, overrides: list[str], environment: dict[str, str]
) -> float:
    """Return the median over all reports of a training run except the first."""
    inherited = {name: value for name, value in os.environ.items() if name not in OPENMP}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "zipflm", "train", preset, "--device", "cpu"]
        command += ["--data", str(data), "--out", f"{folder}/run"]
        command += ["training.report_every=5", "training.validate_every=0", *overrides]
        subprocess.run(command, env=inherited | environment, check=True, stdout=subprocess.DEVNULL)
        lines = map(json.loads, Path(folder, "run/log.jsonl").read_text().splitlines())
        rates = [line["tokens_per_second"] for line in lines if line["kind"] == "Report"]
    return statistics.median(rates[1:])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--presets", nargs="+", default=["tiny/ADP-T", "demo/ADP-T"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    counts = sorted({0, 1, len(os.sched_getaffinity(0))})
    parser.add_argument("--neighbours", type=int, nargs="+", default=counts)
    parser.add_argument("overrides", nargs="*", default=["training.max_updates=40"])
    args = parser.parse_args(argv)
    counts = args.neighbours
    print(f"tokens/s on {len(os.sched_getaffinity(0))} cores, by the number of busy neighbors")
    print(f"{'preset':<12} {'waiting':<12}" + "".join(f"{count:>10}" for count in counts))
    for preset in args.presets:
        for name in args.settings:
            rates = []
            for count in counts:
                with busy_neighbors(count):
                    rate = tokens_per_second(preset, args.data, args.overrides, SETTINGS[name])
                rates.append(f"{rate:10,.0f}")
            print(f"{preset:<12} {name:<12}" + "".join(rates), flush=True)


if __name__ == "__main__":
    main()
