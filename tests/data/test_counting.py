"""Words counted on the disk are those counted in memory."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data import counting
from zipflm.data.counting import Totals, WordCounts, WordTable

WORDS = st.text("ab\u00e9\U0001f600\u2028", min_size=1, max_size=4)
CHUNKS = st.lists(st.dictionaries(WORDS, st.integers(1, 1 << 40), max_size=8), max_size=12)


def counted(folder, chunks, budget):
    counts = WordCounts(folder, budget)
    for chunk in chunks:
        counts.add(list(chunk), np.array(list(chunk.values()), dtype=np.int64))
    return counts


def pairs(counts):
    return [p for words, n in counts.blocks() for p in zip(words, n.tolist(), strict=True)]


@settings(max_examples=80, deadline=None)
@given(CHUNKS, st.sampled_from([0, 2000, 1 << 30]), st.sampled_from([2, 3, 64]), st.booleans())
def test_counts_are_those_of_a_counter_however_often_they_are_spilled(
    tmp_path_factory, chunks, budget, most_runs, settles
):
    wanted = sum(map(Counter, chunks), Counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_MOST_RUNS", most_runs)
        patch.setattr(counting, "_BLOCK_BYTES", 7)
        patch.setattr(counting, "_LEAST_BLOCK_BYTES", 5)
        folder = tmp_path_factory.mktemp("runs")
        counts = counted(folder, chunks, budget)
        if settles:
            counts.settle()
        for _ in range(2):  # they can be read more than once
            found = pairs(counts)
            assert dict(found) == wanted and len(found) == len(wanted)
        if any(folder.iterdir()):
            assert [word for word, _ in found] == sorted(wanted)
            assert len(list(folder.iterdir())) == 2  # runs that were merged are gone


def test_without_a_budget_nothing_is_written(tmp_path):
    counts = counted(tmp_path, [{"b": 1, "a": 2}, {"a": 1}], None)
    counts.settle()
    assert pairs(counts) == [("b", 1), ("a", 3)] and not any(tmp_path.iterdir())
    assert pairs(WordCounts(tmp_path)) == []


def test_what_is_in_memory_stays_below_the_budget(tmp_path, monkeypatch):
    """Measured, not as it is estimated; the size of one chunk comes on top."""
    import tracemalloc

    budget, chunk = 3_000_000, [f"word{number}" for number in range(60_000)]
    counts = WordCounts(tmp_path, budget)
    tracemalloc.start()
    try:
        for start in range(0, len(chunk), 1000):
            counts.add(chunk[start : start + 1000], np.ones(1000, dtype=np.int64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < budget + 1_000_000
    assert len(list(tmp_path.iterdir())) >= 2 * 2
    assert dict(pairs(counts)) == dict.fromkeys(chunk, 1)


def test_a_table_numbers_words_in_the_order_of_sight():
    table = WordTable("\0")
    assert table.add(["\0", "b"], np.array([2, 1])).tolist() == [0, 1]
    assert table.add(["\0", "a", "b"], np.array([1, 5, 1])).tolist() == [0, 2, 1]
    assert table.counts.tolist() == [3, 2, 5] and list(table.index) == ["\0", "b", "a"]


def test_totals_add_up():
    blocks = [(["a@@", "\u00e9"], np.array([3, 2])), (["<unk>"], np.array([4]))]
    assert Totals.of(blocks) == Totals(types=3, letters=9 + 4 + 20, continued=3, spelt_unknown=4)
