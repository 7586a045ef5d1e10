"""Numbered cases that are the same every time, tried one after the other for a while."""

import random
import time
import traceback
from collections import Counter
from itertools import count

_MOST_SHOWN = 5
_MOST_CHARACTERS = 3_000


def case(seed, number):
    """The source of all that is random in one case."""
    return random.Random(f"{seed} {number}")


def tried(attempt, seed, seconds, first=0):
    """How often `attempt(rng)` returned what, over all cases for which there was time.

    AssertionError lists the first cases in which it raised something instead.
    """
    end = time.monotonic() + seconds
    outcomes, wrong = Counter(), []
    for number in count(first):
        if time.monotonic() > end or len(wrong) == _MOST_SHOWN:
            break
        try:
            outcomes[attempt(case(seed, number))] += 1
        except Exception:
            reason = traceback.format_exc()[-_MOST_CHARACTERS:]
            wrong.append(f"case {number} of seed {seed}:\n{reason}")
    assert not wrong, "\n\n".join(wrong)
    return outcomes
