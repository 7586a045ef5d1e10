"""Run reproducible numbered fuzz cases for a limited time."""

import random
import resource
import signal
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from itertools import count

MIN_CASES = 60  # also on a busy machine
MAX_SECONDS = 10.0  # per case, on a busy machine
MAX_MEGABYTES = 1_000  # in addition to those in use at the start
_MOST_SHOWN = 5
_LONGEST_LINE = 500


class TookTooLong(BaseException):
    """Not an Exception, so that the code under test does not catch it."""


def case(seed, number):
    """Return the random generator of one case."""
    return random.Random(f"{seed} {number}")


def tried(attempt, seed, seconds, first=0):
    """Run `attempt(rng)` on MIN_CASES cases or until the time is up, and count its return values.

    Raises AssertionError listing the first cases that raised, hung or used too much memory.
    """
    end = time.monotonic() + seconds
    outcomes, wrong = Counter(), []
    with limited_memory():
        for number in count(first):
            is_over = number >= first + MIN_CASES and time.monotonic() > end
            if is_over or len(wrong) == _MOST_SHOWN:
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
    """Raise TookTooLong if the body takes longer."""

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
    """Raise MemoryError if the body allocates more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
