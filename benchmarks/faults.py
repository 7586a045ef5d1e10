"""Kill commands at many points, and check that running them again repairs everything.

    python benchmarks/faults.py [--kills 20] [--jobs 4] [--commands prepare,train,compare]

Runs `prepare`, `train` and `compare` at toy sizes and kills them with SIGKILL, at system calls that
change the disk (`--kills` of them, evenly spread; 0: all) and at random times after the first such
change. Then runs the same command again and compares the result with an uninterrupted run: hashes
of the data folder, weights and optimizer, the log, and the study's table without times. All must be
bit-for-bit equal, with no extra files.

Killing at system calls needs strace. A kill does not simulate a power cut: the disk cache survives.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import zipflm

CHANGES = (
    "write,pwrite64,writev,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,fsync,"
    "fdatasync,truncate,ftruncate,fallocate,chmod,fchmod,fchmodat,link,symlink"
)
"""System calls that change the disk, except for opening a new file: a kill after that is equivalent
to one before the next of these calls."""
MEASURED = {
    "seconds",
    "cpu_seconds",
    "seconds_left",
    "tokens_per_second",
    "data_share",
    "memory",
    "versions",
}
"""Names in logs and tables of values that differ from run to run."""
SMALL = (
    "decoder.dim=16 decoder.ffn_dim=32 decoder.num_layers=1 decoder.num_heads=2 input.dim=16 "
    "output.dim=16 batches.block=16 batches.tokens=64 batches.eval_block=16 training.max_updates=6 "
    "training.tokens_per_update=64 training.report_every=1 training.checkpoint_every=2"
).split()


class Command(NamedTuple):
    """A command to kill; paths in its arguments are relative to its working folder."""

    arguments: list[str]
    fingerprint: Callable[[Path], dict[str, str]]
    """Hashes or contents that must be equal, by name."""
    is_done: Callable[[Path], bool] = lambda folder: False
    """True if the killed command had already finished. Running it again is then an error, but
    cleans up."""


class Kill(NamedTuple):
    """When to kill: at the n-th call of a system call, or seconds after the disk first changes."""

    call: str
    when: float


class Outcome(NamedTuple):
    """The result of one kill."""

    kill: Kill
    is_partial: bool
    """Some but not all of the output existed after the kill."""
    is_resumed: bool
    differing: list[str]
    leftovers: list[str]


def files_below(folder: Path) -> dict[str, str]:
    """Return the hashes of all files by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def entries(folder: Path) -> set[str]:
    """List files and folders, except for the list of verified files, which appears later."""
    paths = (path for path in folder.rglob("*") if path.name != ".verified.json")
    return {str(path.relative_to(folder)) for path in paths}


def without_measures(value: Any) -> Any:
    """Remove values that differ from run to run from a log or table."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in MEASURED and "training_" not in k}
        return {key: without_measures(item) for key, item in kept.items()}
    return [without_measures(item) for item in value] if isinstance(value, list) else value


def run_fingerprint(run: Path) -> dict[str, str]:
    lines = (run / "log.jsonl").read_text().splitlines()
    log = [without_measures(json.loads(line)) for line in lines]
    hashes = {"log": json.dumps(log)}
    for path in sorted((run / "checkpoints").glob("update-*/*.safetensors")):
        hashes[f"{path.parent.name}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def study_fingerprint(study: Path) -> dict[str, str]:
    table = without_measures(json.loads((study / "table.json").read_text()))
    hashes = {"table": json.dumps(table, sort_keys=True)}
    for run in sorted(path.parent for path in study.glob("members/*/*/config.json")):
        hashes |= {f"{run.parent.name}/{k}": v for k, v in run_fingerprint(run).items()}
    return hashes


PREPARE = ["prepare", "train.txt", "--valid", "valid.txt", "--out", "data", "--min-count", "1"]
COMMANDS = {
    "prepare": Command(
        [*PREPARE, "--processes", "1"], lambda folder: files_below(folder / "data"),
        lambda folder: (folder / "data" / "data.json").is_file(),
    ),
    "train": Command(
        ["train", "tiny/ADP-T", "--data", "data", "--out", "run", "--device", "cpu",
         "--resume-if-any", "--keep", "1", *SMALL],
        lambda folder: run_fingerprint(folder / "run"),
    ),
    "compare": Command(
        ["compare", "--data", "data", "--preset", "tiny", "--out", "study", "--device", "cpu",
         "--factorizations", "ASM,ADP-T", *SMALL],
        lambda folder: study_fingerprint(folder / "study"),
    ),
}  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Keep temporary files inside the folder, so that leftovers are detected."""
    tmp = folder / "tmp"
    tmp.mkdir(exist_ok=True)
    source = str(Path(zipflm.__file__).parents[1])
    more = {"TMPDIR": str(tmp), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | more | {"PYTHONPATH": source}


def started(command: Command, folder: Path, prefix: Iterable[str] = ()) -> subprocess.Popen[bytes]:
    line = [*prefix, sys.executable, "-m", "zipflm", *command.arguments]
    log = (folder.parent / f"{folder.name}.output").open("ab")
    with log:
        return subprocess.Popen(line, cwd=folder, env=environment(folder), stdout=log, stderr=log)


def traced(folder: Path, *options: str) -> list[str]:
    """Return the strace command for the main thread, which makes all changes to the disk."""
    return ["strace", "-qq", "-y", "-s", "0", "-o", str(folder.parent / "trace"), *options]


def can_trace() -> bool:
    """True if strace is installed and permitted."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-qq", "-o", os.devnull, "true"]).returncode == 0


def disk_changes(command: Command, folder: Path) -> Iterator[Kill]:
    """Yield all system calls of the command that change something inside `folder`, in order."""
    assert started(command, folder, traced(folder, "-e", f"trace={CHANGES}")).wait() == 0
    counts: Counter[str] = Counter()
    for line in (folder.parent / "trace").read_text(errors="replace").splitlines():
        if match := re.match(r"(\w+)\(", line):
            call = match[1]
            counts[call] += 1  # strace counts calls by name
            if str(folder) in line:
                yield Kill(call, counts[call])


def select_evenly(kills: list[Kill], count: int) -> list[Kill]:
    """Select `count` evenly spread kills (0: all)."""
    if count == 0 or count >= len(kills):
        return kills
    return [kills[index * len(kills) // count] for index in range(count)]


def random_moments(command: Command, folder: Path, count: int, draw: random.Random) -> list[Kill]:
    """Draw random times between the first change to the disk and the end."""
    process = started(command, folder)
    wait_for_change(folder, process)
    start = time.monotonic()
    assert process.wait() == 0
    length = time.monotonic() - start
    return [Kill("a moment", draw.uniform(0, length)) for _ in range(count)]


def wait_for_change(folder: Path, process: subprocess.Popen[bytes]) -> None:
    before = entries(folder)
    while process.poll() is None and entries(folder) == before:
        time.sleep(0.002)


def run_and_kill(command: Command, folder: Path, kill: Kill) -> bool:
    """Run and kill the command. Return False if it finished before the kill."""
    if kill.call == "a moment":
        process = started(command, folder)
        wait_for_change(folder, process)
        time.sleep(kill.when)
        process.kill()
        return process.wait() == -9
    fault = f"inject={kill.call}:signal=SIGKILL:when={kill.when:.0f}"
    return started(command, folder, traced(folder, "-e", fault)).wait() == -9


class Trial(NamedTuple):
    """A command with its starting folder and the results of an uninterrupted run."""

    name: str
    command: Command
    template: Path
    undisturbed: dict[str, str]
    entries: set[str]


def observe(trial: Trial, kill: Kill, scratch: Path) -> Outcome | None:
    """Kill, run again and compare. Return None if the command finished before the kill."""
    folder = fresh(trial.template, scratch)
    before = entries(folder)
    if not run_and_kill(trial.command, folder, kill):
        return None
    left = entries(folder)
    is_partial = left != before and not trial.entries <= left
    expected = 2 if trial.command.is_done(folder) else 0
    if started(trial.command, folder).wait() != expected:
        return Outcome(kill, is_partial, False, ["not resumed"], [])
    hashes = trial.command.fingerprint(folder)
    names = hashes.keys() | trial.undisturbed.keys()
    differing = [name for name in names if hashes.get(name) != trial.undisturbed.get(name)]
    leftovers = sorted(entries(folder) - trial.entries)
    return Outcome(kill, is_partial, True, sorted(differing), leftovers)


def observe_all(trial: Trial, kills: list[Kill], scratch: Path, jobs: int) -> list[Outcome | None]:
    """Run `jobs` trials in parallel, each in its own folder."""
    folders: Queue[Path] = Queue()
    for number in range(jobs):
        folders.put(scratch / f"job-{number}")

    def one(kill: Kill) -> Outcome | None:
        folder = folders.get()
        folder.mkdir(exist_ok=True)
        try:
            return observe(trial, kill, folder)
        finally:
            folders.put(folder)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, kills))


def fresh(template: Path, scratch: Path) -> Path:
    """Copy the template, always under the same name, which appears in tables."""
    folder = scratch / "work"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    (folder / "tmp").mkdir()
    return folder


def trial_of(name: str, template: Path, scratch: Path) -> Trial:
    command, folder = COMMANDS[name], fresh(template, scratch)
    assert started(command, folder).wait() == 0, (scratch / "work.output").read_text()
    return Trial(name, command, template, command.fingerprint(folder), entries(folder))


def trials(names: list[str], scratch: Path) -> Iterator[Trial]:
    texts = scratch / "texts"
    texts.mkdir()
    words = [f"{a}{b}" for a in "bdfgklmnps" for b in ("a", "e", "ila", "oro")]
    for split, seed, lines in (("train", 0, 60), ("valid", 1, 8)):
        draw = random.Random(seed)
        text = "".join(" ".join(draw.choices(words, k=6)) + "\n" for _ in range(lines))
        (texts / f"{split}.txt").write_text(text)
    prepared = shutil.copytree(texts, scratch / "prepared")
    assert started(COMMANDS["prepare"], prepared).wait() == 0
    shutil.rmtree(prepared / "tmp")
    for name in names:
        yield trial_of(name, texts if name == "prepare" else prepared, scratch)


TITLES = ("command", "killed at", "kills", "partial", "resumed", "bit-equal", "leftovers")


def row(name: str, where: str, outcomes: list[Outcome]) -> tuple[str, ...]:
    partial = sum(outcome.is_partial for outcome in outcomes)
    resumed = sum(outcome.is_resumed for outcome in outcomes)
    equal = sum(outcome.is_resumed and not outcome.differing for outcome in outcomes)
    left = sum(bool(outcome.leftovers) for outcome in outcomes)
    return (name, where, *map(str, (len(outcomes), partial, resumed, equal, left)))


def explain(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield one line for each outcome with differences or leftovers."""
    for outcome in outcomes:
        if outcome.differing or outcome.leftovers:
            wrong = ", ".join(outcome.differing) or "equal"
            left = ", ".join(outcome.leftovers[:5]) or "none"
            yield f"  {outcome.kill.call} {outcome.kill.when:g}: {wrong}; leftovers: {left}"


def kills_of(trial: Trial, options: argparse.Namespace, scratch: Path) -> dict[str, list[Kill]]:
    """Return the kills by group."""
    folder, draw = fresh(trial.template, scratch), random.Random(options.seed)
    groups = {"moments": random_moments(trial.command, folder, options.moments, draw)}
    if can_trace():
        calls = list(disk_changes(trial.command, fresh(trial.template, scratch)))
        groups[f"{len(calls)} calls"] = select_evenly(calls, options.kills)
    return groups


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--kills", type=int, default=20, help="kills at system calls (0: all)")
    parser.add_argument("--moments", type=int, default=10, help="kills at random moments")
    parser.add_argument("--jobs", type=int, default=1, help="trials to run in parallel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="also write all outcomes to this file")
    options = parser.parse_args(arguments)
    results = {}
    print("  ".join(f"{title:12}" for title in TITLES))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name).resolve()
        for trial in trials(options.commands.split(","), scratch):
            for where, kills in kills_of(trial, options, scratch).items():
                observed = observe_all(trial, kills, scratch, options.jobs)
                outcomes = [outcome for outcome in observed if outcome is not None]
                cells = row(trial.name, where, outcomes)
                print("  ".join(f"{cell:12}" for cell in cells), *explain(outcomes), sep="\n")
                results[f"{trial.name}, {where}"] = [outcome._asdict() for outcome in outcomes]
    if not can_trace():
        print("strace is not available: only killed at random moments")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
