"""Functions that tests start in processes of their own: `zipflm` with a fault in one of several
processes, and a process that gets SIGTERM.

`place` is `train`, in the third update, or `score`, of the first member. `fault` is `error` (of the
input), `bug` (of the program) or `kill` (the process is gone).
"""

import os
import signal
import sys
import time
from itertools import count

import torch.distributed as dist


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


def _break(place, fault):
    from zipflm.comparison import members
    from zipflm.training import step

    calls = count()
    if place == "score":
        true_score = members.score_split

        def faulty_score(*arguments):
            if next(calls) == 0:
                _fail(fault)
            return true_score(*arguments)

        members.score_split = faulty_score
        return
    true_update = step.update

    def faulty_update(learner, batches, stop=False):
        if next(calls) == 2:
            _fail(fault)
        return true_update(learner, batches, stop)

    step.update = faulty_update


def _fail(fault):
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise {"error": ValueError, "bug": KeyError}[fault](f"a fault in process {os.environ['RANK']}")


def terminated(moment):
    """One of two processes, of which the other never answers, gets SIGTERM at some moment."""
    from zipflm.training import team as module

    module._connect, module._GRACE = dist.HashStore, 1.0
    team = module.Team(0, 2)
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
