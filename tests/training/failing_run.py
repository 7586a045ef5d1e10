"""`zipflm` with a fault in one of several processes.

`place` is `train` (third update), `read` (before it), `score` (first member) or `save`. `fault` is
`error` (bad input), `bug`, `kill`, `hang` or `slow` (a few seconds).
"""

import os
import signal
import sys
import time
from itertools import count
from pkgutil import resolve_name

SLOW = 4.0  # seconds


def run(rank, place, fault, *arguments):
    """Run `zipflm` with these arguments in the environment of torchrun."""
    import zipflm.cli
    from zipflm.distributed import failures, processes
    from zipflm.studies import report

    # Save time: shorter timeouts, and no figures.
    failures._PATIENCE, processes._SLOW_FOLDER = 1.5, 1.0
    report.save_figures = lambda *_: []
    if os.environ["RANK"] == rank:
        _break(place, fault)
    sys.argv = ["zipflm", *arguments]
    zipflm.cli.main()


def run_each(arguments):
    """The same without a fault, with separate arguments for each process."""
    run("none", "", "", *arguments[int(os.environ["RANK"])])


_PLACES = {
    "train": ("zipflm.training.step", "update", 2),
    "read": ("zipflm.training.stream.Stream", "next_update", 2),
    "score": ("zipflm.evaluation.scoring", "start_scoring", 0),
    "save": ("zipflm.runs.sharded.ShardWriter", "finish", 0),
}
"""Owner, function, and the call that fails."""


def _break(place, fault):
    where, name, fails_in = _PLACES[place]
    owner, calls = resolve_name(where), count()
    original = getattr(owner, name)

    def faulty(*arguments, **options):
        if next(calls) == fails_in:
            _fail(fault)
        return original(*arguments, **options)

    faulty.__code__ = faulty.__code__.replace(co_name=f"faulty_{name}")  # for tracebacks
    setattr(owner, name, faulty)


def _fail(fault):
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in ("hang", "slow"):
        time.sleep(SLOW if fault == "slow" else 600)
        return
    raise {"error": ValueError, "bug": KeyError}[fault](f"a fault in process {os.environ['RANK']}")
