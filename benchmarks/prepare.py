"""Speed and memory of preparing text.

    python benchmarks/prepare.py part0.txt part1.txt part2.txt part3.txt --json prepare.json

Compares `prepare` with a plain loop in one process: a Counter over `split()`, then a dictionary
lookup per word. Cases alternate, each in a new process, and the best time of each is reported.
Measures the first file and all files, to show that time grows linearly and memory does not.

The speeds of the rules `words` and `wikitext` are also shown relative to that of `whitespace`;
measure them on raw prose.
"""

from __future__ import annotations

import argparse
import itertools
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
    """Run the baseline: count all words, rank them, and look up the id of each."""
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


def prepare_texts(
    names: list[str], folder: str, processes: int = 1, rule: Any = "whitespace"
) -> Any:
    """Prepare the texts and return their token file."""
    # Imported here, so that the memory of the plain loop excludes it.
    from zipflm.config import Splitting
    from zipflm.data.prepare import Options, prepare

    data = prepare(
        Path(folder) / "data",
        {"train": names},
        Options(splitting=Splitting(rule)),
        processes=processes,
    )
    return data.tokens("train")


def make_plan(tokens: Any, break_mode: str) -> Any:
    """Return shuffled batches over a token file."""
    from zipflm.config import Blocks
    from zipflm.data.batches import Batches

    blocks = Blocks(break_mode=break_mode, block=512)
    return Batches(tokens, blocks, max_tokens=4096, seed=1, shuffle=True)


def ours(names: list[str], processes: int, rule: str) -> dict[str, float]:
    """Run `prepare`."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        tokens = prepare_texts(names, folder, processes, rule)
        return {"seconds": time.perf_counter() - start, "tokens": len(tokens)}


def batches(names: list[str]) -> dict[str, float]:
    """Return the speed of assembling batches from the token file, by break mode."""
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        tokens = prepare_texts(names, folder)
        for mode in ("none", "complete", "sentence"):
            start = time.perf_counter()
            plan = make_plan(tokens, mode)
            plan.windows(0, 0)
            rates[f"{mode}_plan_seconds"] = time.perf_counter() - start
            start, scored = time.perf_counter(), 0
            for batch in itertools.islice(plan.epoch(0), 2000):
                scored += int(np.count_nonzero(batch.scored))
            rates[f"{mode}_tokens_per_second"] = scored / (time.perf_counter() - start)
    return rates


def long_plans(tokens: int) -> dict[str, float]:
    """Return the CPU seconds to plan an epoch of an artificial text."""
    import zipflm.data.batches  # noqa: F401  (import time is not measured)
    from zipflm.data.token_file import TokenArray

    lengths = np.random.default_rng(0).integers(1, 54, size=max(2, tokens // 27))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    text = TokenArray(np.broadcast_to(np.uint16(5), (int(offsets[-1]),)), offsets)
    seconds = {}
    for mode in ("none", "complete", "sentence"):
        start = time.process_time()
        make_plan(text, mode).windows(0, 0)
        seconds[f"{mode}_plan_cpu_seconds"] = time.process_time() - start
    return seconds


def measure(case: str, names: list[str], processes: int) -> dict[str, float]:
    """Run one case in a new process, to measure its memory alone."""
    command = [sys.executable, __file__, *names, "--case", case, "--processes", str(processes)]
    result: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return result


def run_case(case: str, names: list[str], processes: int) -> dict[str, float]:
    if case in RULES:
        result = ours(names, processes, case)
    else:
        result = {"plain": plain, "batches": batches}[case](names)
    result["cpu_seconds"] = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    # Kilobytes on Linux; the largest worker.
    result["parent_peak_mb"] = own_peak() / 1024
    result["worker_peak_mb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return result


def own_peak() -> int:
    """Return the peak memory in kilobytes. `ru_maxrss`, the fallback, includes that of the parent
    process."""
    try:
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def compare(names: list[str], processes: int, repeats: int) -> dict[str, Any]:
    cases = {"plain loop": ("plain", 1)}
    for number in (1, processes):
        for rule in RULES:
            split = "" if rule == "whitespace" else f" {rule}"
            cases[f"prepare{split}, {number} process{'es' if number > 1 else ''}"] = (rule, number)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, (case, number) in cases.items():
            runs[name].append(measure(case, names, number))
    results = {name: min(timed, key=lambda run: run["seconds"]) for name, timed in runs.items()}
    by_whitespace = {number: results[n] for n, (rule, number) in cases.items() if rule == RULES[0]}
    for name, (rule, number) in cases.items():
        result = results[name]
        result["speedup"] = results["plain loop"]["seconds"] / result["seconds"]
        if rule in RULES:
            for unit in ("seconds", "cpu_seconds"):
                result[f"of_whitespace_{unit}"] = by_whitespace[number][unit] / result[unit]
    return results


def show(title: str, results: dict[str, Any]) -> None:
    print(
        f"\n{title}\n{'':30}   seconds   CPU s  tokens/s   speedup   parent MB  worker MB"
        "  of the whitespace rate (by CPU s)"
    )
    for name, run in results.items():
        rate = run["tokens"] / run["seconds"] / 1e6
        share = ""
        if "of_whitespace_seconds" in run:
            share = f"  {run['of_whitespace_seconds']:8.2f} "
            share += f"({run['of_whitespace_cpu_seconds']:.2f})"
        worker = run["worker_peak_mb"] if "processes" in name else 0
        print(
            f"{name:30}  {run['seconds']:8.2f}  {run['cpu_seconds']:6.1f}  {rate:7.2f}M"
            f"  {run['speedup']:8.2f}  {run['parent_peak_mb']:10.0f} {worker:10.0f}" + share,
            flush=True,
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    plan_help = "tokens of the artificial text to plan"
    parser.add_argument("--plan-tokens", type=int, default=1_000_000_000, help=plan_help)
    parser.add_argument("--json", help="also write the results to this file")
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
        show(title, results[title])
    results["batches"] = measure("batches", options.texts, 1)
    results["plans"] = long_plans(options.plan_tokens)
    print("\nbatches of 4096 tokens from all files, one thread")
    for name, value in results["batches"].items():
        print(f"{name:30} {value:14,.2f}")
    print(f"\nplans of {options.plan_tokens:,} tokens")
    for name, value in results["plans"].items():
        print(f"{name:30} {value:14,.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
