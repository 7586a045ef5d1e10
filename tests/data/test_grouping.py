import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data.windows import Runs, group

GOLDEN = Path(__file__).parent.parent / "golden" / "data"


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), max_size=8), st.integers(1, 60))
def test_rows_of_one_length_are_grouped_as_one_by_one(runs, max_tokens):
    lengths = [length for length, number in runs for _ in range(number)]
    expected, first = [0], 0
    for row in range(1, len(lengths) + 1):
        is_full = row == len(lengths) or (
            max(lengths[first : row + 1]) * (row + 1 - first) > max_tokens
        )
        if is_full:
            expected.append(row)
            first = row
    assert group(np.array(lengths, dtype=np.uint16), max_tokens).tolist() == expected


def test_groups_are_those_of_the_published_code():
    golden = json.loads((GOLDEN / "dataset.json").read_text())["batch_by_size"]
    lengths = np.array(golden["sizes"])[golden["order"]]
    bounds = group(lengths, golden["max_tokens"])
    wanted = np.cumsum([0] + [len(batch) for batch in golden["batches_multiple1"]])
    assert bounds.tolist() == wanted.tolist()


@given(st.lists(st.integers(1, 3), max_size=30), st.data())
def test_runs_have_the_lengths_of_all_rows(lengths, data):
    runs = Runs.of(np.array(lengths, dtype=np.uint16))
    assert runs.num_rows == len(lengths)
    if lengths:
        start = data.draw(st.integers(0, len(lengths) - 1))
        stop = data.draw(st.integers(start + 1, len(lengths) + 5))
        assert runs.lengths_of(start, stop).tolist() == lengths[start:stop]


def test_equal_neighbours_with_counts_are_one_run():
    runs = Runs.of(np.array([2, 2, 5]), np.array([3, 4, 1]))
    assert (runs.lengths.tolist(), runs.ends.tolist()) == ([2, 5], [7, 8])
    assert runs.starts.tolist() == [0, 7]
