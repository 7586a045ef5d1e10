"""`zipflm` with a fault in one of several processes, for tests that start it in processes of their
own.

`place` is `train`, in the third update, `read`, before it, `score`, of the first member, or `save`.
`fault` is `error` (of the input), `bug` (of the program), `kill` (the process is gone), `hang` or
`slow` (for some seconds).
"""

import os
import signal
import sys
import time
from itertools import count
from pkgutil import resolve_name

SLOW = 4.0
"""Seconds."""


def run(rank, place, fault, *arguments):
    """The command line of `zipflm` with these arguments, under the environment of torchrun."""
    import zipflm.cli
    from zipflm.studies import report
    from zipflm.training import distributed

    # For the sake of time: shorter patience, and no figures, which take longer than the rest.
    distributed._PATIENCE, distributed._SLOW_FOLDER = 1.5, 1.0
    report.save_figures = lambda *_: []
    if os.environ["RANK"] == rank:
        _break(place, fault)
    sys.argv = ["zipflm", *arguments]
    zipflm.cli.main()


def run_each(arguments):
    """The same without a fault, each process with its own arguments."""
    run("none", "", "", *arguments[int(os.environ["RANK"])])


_PLACES = {
    "train": ("zipflm.training.step", "update", 2),
    "read": ("zipflm.training.stream.Stream", "next_update", 2),
    "score": ("zipflm.evaluation.scoring", "start_scoring", 0),
    "save": ("zipflm.runs.sharded.ShardWriter", "finish", 0),
}
"""What is replaced, and in which of its calls it fails."""


def _break(place, fault):
    where, name, fails_in = _PLACES[place]
    owner, calls = resolve_name(where), count()
    true = getattr(owner, name)

    def faulty(*arguments, **options):
        if next(calls) == fails_in:
            _fail(fault)
        return true(*arguments, **options)

    faulty.__code__ = faulty.__code__.replace(co_name=f"faulty_{name}")  # as tracebacks show it
    setattr(owner, name, faulty)


def _fail(fault):
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in ("hang", "slow"):
        time.sleep(SLOW if fault == "slow" else 600)
        return
    raise {"error": ValueError, "bug": KeyError}[fault](f"a fault in process {os.environ['RANK']}")
