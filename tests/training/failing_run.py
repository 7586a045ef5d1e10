"""`zipflm` as torchrun starts it, with a fault in one process.

    failing_run.py RANK PLACE FAULT zipflm's arguments ...

PLACE is `train`, in the third update, or `score`, of the first member. FAULT is `error` (of the
input), `bug` (of the program) or `kill` (the process is gone).
"""

import os
import signal
import sys

import zipflm.cli
from zipflm.comparison import members
from zipflm.training import step, team

team.PATIENCE, team._LONGER = 3.0, 2.0  # for the tests' sake
rank, place, fault = sys.argv[1:4]
sys.argv = ["zipflm", *sys.argv[4:]]
true_update, true_score = step.update, members.score_split
updates, scorings = iter(range(10**6)), iter(range(10**6))


def fail():
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise {"error": ValueError, "bug": KeyError}[fault](f"a fault in process {rank}")


def faulty_update(learner, batches, stop=False):
    if next(updates) == 2:
        fail()
    return true_update(learner, batches, stop)


def faulty_score(*arguments):
    if next(scorings) == 0:
        fail()
    return true_score(*arguments)


if os.environ["RANK"] == rank:
    if place == "score":
        members.score_split = faulty_score
    else:
        step.update = faulty_update
zipflm.cli.main()
