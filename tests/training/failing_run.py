"""Functions that tests start in processes of their own: `zipflm` with a fault in one of several
processes, and a process that gets SIGTERM.

`place` is `train`, in the third update, `read`, before it, `score`, of the first member, or `save`.
`fault` is `error` (of the input), `bug` (of the program), `kill` (the process is gone), `hang` (as
on a file system that does not answer) or `slow` (for some seconds).
"""

import os
import signal
import sys
import time
from itertools import count
from pkgutil import resolve_name

import torch.distributed as dist

SLOW = 4.0
"""Seconds."""


def run(rank, place, fault, *arguments):
    """The command line of `zipflm` with these arguments, under the environment of torchrun."""
    import zipflm.cli
    from zipflm.analysis import report
    from zipflm.training import team

    # For the sake of time: shorter patience, and no figures, which take longer than the rest.
    team.PATIENCE, team._LONGER = 1.5, 1.0
    report.save_figures = lambda *_: []
    if os.environ["RANK"] == rank:
        _break(place, fault)
    sys.argv = ["zipflm", *arguments]
    zipflm.cli.main()


_PLACES = {
    "train": ("zipflm.training.step", "update", 2),
    "read": ("zipflm.training.trainer", "_next_batches", 2),
    "score": ("zipflm.evaluation.scoring", "score_windows", 0),
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


def terminated(moment):
    """One of two processes, of which the other never answers, gets SIGTERM at some moment."""
    from zipflm.training import team as module

    module._connect, module._GRACE = lambda attempt: dist.HashStore(), 1.0
    team = module.Team(0, 2, "attempt")
    with team.leaving_together():
        if moment == "well":
            _terminate()
            time.sleep(60)
        try:
            raise RuntimeError("connection closed by peer")
        except RuntimeError as error:
            problem = str(error)
        if moment == "failed":
            _terminate()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            signal.signal(signal.SIGALRM, _terminate)
        team.agree(problem)


def _terminate(*_):
    os.kill(os.getpid(), signal.SIGTERM)
