"""Numbered cases that are the same every time, tried one after the other for a while."""

import random
import resource
import signal
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from itertools import count

MAX_SECONDS = 10.0  # for one case: the machine may be busy with other things
MAX_MEGABYTES = 1_000  # more than there are before
_MOST_SHOWN = 5
_LONGEST_LINE = 500


class TookTooLong(BaseException):
    """Not an Exception, which a reader might catch and take for damage."""


def case(seed, number):
    """The source of all that is random in one case."""
    return random.Random(f"{seed} {number}")


def tried(attempt, seed, seconds, first=0):
    """How often `attempt(rng)` returned what, over all cases for which there was time.

    AssertionError lists the first cases in which it raised something instead, or did not come to
    an end, or needed too much memory.
    """
    end = time.monotonic() + seconds
    outcomes, wrong = Counter(), []
    with limited_memory():
        for number in count(first):
            if time.monotonic() > end or len(wrong) == _MOST_SHOWN:
                break
            try:
                with limited_time():
                    outcomes[attempt(case(seed, number))] += 1
            except (Exception, TookTooLong):
                lines = traceback.format_exc().splitlines()
                reason = "\n".join(line[:_LONGEST_LINE] for line in lines)
                wrong.append(f"case {number} of seed {seed}:\n{reason}")
    assert not wrong, "\n\n".join(wrong)
    return outcomes


@contextmanager
def limited_time(seconds=MAX_SECONDS):
    """TookTooLong where something waits or goes on for longer."""

    def stop(signal, frame):
        raise TookTooLong(f"{seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def limited_memory(megabytes=MAX_MEGABYTES):
    """MemoryError where something asks for much more than there is."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + megabytes * 2**20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
