"""Processes meet those of the same attempt, whatever earlier ones have left in the store."""

import threading
import time

import pytest
import torch.distributed as dist

from zipflm.training.meeting import meet


def attempt(store, delays, seconds=10.0):
    """What each process gets that comes after so many seconds."""
    found = [None] * len(delays)

    def come(rank):
        time.sleep(delays[rank])
        try:
            found[rank] = meet(store, rank, len(delays), seconds)
        except RuntimeError as error:
            found[rank] = error

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(len(delays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "it waits for ever"
    return found


@pytest.mark.parametrize("delays", [(0, 0, 0), (0.3, 0, 0), (0, 0.3, 0)])
def test_each_attempt_has_a_name_of_its_own_that_all_know(delays):
    store, names = dist.HashStore(), set()
    for _ in range(3):
        found = attempt(store, delays)
        assert len(set(found)) == 1
        names |= set(found)
    assert len(names) == 3


def test_those_who_died_before_they_met_do_not_stand_in_for_their_successors():
    store = dist.HashStore()
    store.set("here/1", "dead")
    store.set("here/2", "dead, too")
    store.set("answer/dead", "an earlier attempt")
    begun = time.monotonic()
    found = attempt(store, (0, 0.4, 0.2))
    assert len(set(found)) == 1 and found[0] != "an earlier attempt"
    assert time.monotonic() - begun > 0.35  # the first process has waited for them


def test_nobody_waits_for_ever():
    store = dist.HashStore()
    (first, second) = attempt(store, (0, 1), seconds=0.3)
    assert "waited in vain for other processes" in str(first)
    assert isinstance(second, RuntimeError)


def test_without_the_first_there_is_no_meeting():
    with pytest.raises(RuntimeError, match="waited in vain for process 0"):
        meet(dist.HashStore(), 1, 2, 0.2)
