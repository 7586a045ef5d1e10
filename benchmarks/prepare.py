"""How fast text becomes a data folder, and how much memory that takes.

    python benchmarks/prepare.py part0.txt part1.txt part2.txt part3.txt --json prepare.json

Compares `prepare` with the plain loop anybody would write: a Counter over `split()`, then a
dictionary look-up per word, line by line in one process. They take turns, several times, each in a
process of its own, and the best time of each counts, since other work on the machine can only slow
them down. Measures the first file and all files, to show that time is linear and memory is not.

Splitting punctuation off (`--split words` and `wikitext`) is measured in the same turns, and shown
as a share of the rate of `prepare` by white space on the same text: give raw prose to see that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

RULES = ("whitespace", "words", "wikitext")


def plain(names: list[str]) -> dict[str, float]:
    """Count, rank, look up: the baseline."""
    start = time.perf_counter()
    counts: Counter[str] = Counter()
    for name in names:
        with open(name, encoding="utf-8") as lines:
            for line in lines:
                counts.update(line.split())
    counted = time.perf_counter()
    ranked = [word for word, count in counts.most_common() if count >= 3]
    index = {word: number for number, word in enumerate(ranked, start=4)}
    ids = array("I")
    for name in names:
        with open(name, encoding="utf-8") as lines:
            for line in lines:
                ids.extend(index.get(word, 3) for word in line.split())
                ids.append(2)
    end = time.perf_counter()
    return {"seconds": end - start, "count_seconds": counted - start, "tokens": len(ids)}


def prepared(names: list[str], folder: str, processes: int = 1, rule: Any = "whitespace") -> Any:
    """The token file that the package makes of these texts."""
    # Imported here: the plain loop's memory is to be its own.
    from zipflm.config import Splitting
    from zipflm.data.prepare import Options, prepare

    options = Options(splitting=Splitting(rule))
    made = prepare(Path(folder) / "data", {"train": names}, options, processes=processes)
    return made.tokens("train")


def plan_of(tokens: Any, break_mode: str) -> Any:
    """The package's plan of batches over a token file."""
    from zipflm.config import Blocks
    from zipflm.data.batches import Batches

    blocks = Blocks(break_mode=break_mode, block=512)
    return Batches(tokens, blocks, max_tokens=4096, seed=1, shuffle=True)


def ours(names: list[str], processes: int, rule: str) -> dict[str, float]:
    """The whole of `prepare`: reading, splitting, vocabulary, token file, hashes."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        tokens = prepared(names, folder, processes, rule)
        return {"seconds": time.perf_counter() - start, "tokens": len(tokens)}


def batches(names: list[str]) -> dict[str, float]:
    """Batches a second from the token file, and what that adds to memory."""
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        tokens = prepared(names, folder)
        for mode in ("none", "complete", "sentence"):
            start = time.perf_counter()
            plan = plan_of(tokens, mode)
            plan.windows(0, 0)
            rates[f"{mode}_plan_seconds"] = time.perf_counter() - start
            start, scored = time.perf_counter(), 0
            for number in range(min(2000, len(plan))):
                scored += int(np.count_nonzero(plan.batch(0, number).scored))
            rates[f"{mode}_tokens_per_second"] = scored / (time.perf_counter() - start)
    return rates


def measure(case: str, names: list[str], processes: int) -> dict[str, float]:
    """Run one case in a fresh process, so that its peak memory is its own."""
    command = [sys.executable, __file__, *names, "--case", case, "--processes", str(processes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def run_case(case: str, names: list[str], processes: int) -> dict[str, float]:
    if case in RULES:
        result = ours(names, processes, case)
    else:
        result = {"plain": plain, "batches": batches}[case](names)
    result["cpu_seconds"] = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    for who, which in (("parent", resource.RUSAGE_SELF), ("worker", resource.RUSAGE_CHILDREN)):
        # Kilobytes on Linux; of the workers, the largest.
        result[f"{who}_peak_mb"] = resource.getrusage(which).ru_maxrss / 1024
    return result


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    return min(runs, key=lambda run: run["seconds"])


def compare(names: list[str], processes: int, repeats: int) -> dict[str, Any]:
    """Each case in turn, so that a busy minute of the machine affects all of them."""
    cases = {"plain loop": ("plain", 1)}
    for number in (1, processes):
        for rule in RULES:
            split = "" if rule == "whitespace" else f" {rule}"
            cases[f"prepare{split}, {number} process{'es' if number > 1 else ''}"] = (rule, number)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, (case, number) in cases.items():
            runs[name].append(measure(case, names, number))
    results = {name: best(found) for name, found in runs.items()}
    by_white_space = {number: results[n] for n, (rule, number) in cases.items() if rule == RULES[0]}
    for name, (rule, number) in cases.items():
        result = results[name]
        result["speedup"] = results["plain loop"]["seconds"] / result["seconds"]
        if rule in RULES:
            for what in ("seconds", "cpu_seconds"):
                result[f"of_whitespace_{what}"] = by_white_space[number][what] / result[what]
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write the results here too")
    parser.add_argument("--case", choices=["plain", "batches", *RULES], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(run_case(options.case, options.texts, options.processes)))
        return
    python = platform.python_version()
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {python}"
    }
    print(results["machine"])
    for names in dict.fromkeys((tuple(options.texts[:1]), tuple(options.texts))):
        title = f"{len(names)} file(s), {sum(map(os.path.getsize, names)) / 1e6:.0f} MB"
        results[title] = compare(list(names), options.processes, options.repeats)
        print(
            f"\n{title}\n{'':30}   seconds   CPU s  tokens/s  speed-up   parent MB  worker MB"
            "  of the rate by white space (by CPU s)"
        )
        for name, run in results[title].items():
            rate = run["tokens"] / run["seconds"] / 1e6
            share = ""
            if "of_whitespace_seconds" in run:
                share = f"  {run['of_whitespace_seconds']:8.2f} "
                share += f"({run['of_whitespace_cpu_seconds']:.2f})"
            worker = run["worker_peak_mb"] if "processes" in name else 0
            print(
                f"{name:30}  {run['seconds']:8.2f}  {run['cpu_seconds']:6.1f}  {rate:7.2f}M"
                f"  {run['speedup']:8.2f}  {run['parent_peak_mb']:10.0f} {worker:10.0f}" + share
            )
    results["batches"] = measure("batches", options.texts, 1)
    print("\nbatches of 4096 tokens from all files, one thread")
    for name, value in results["batches"].items():
        print(f"{name:30} {value:14,.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
