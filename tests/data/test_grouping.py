import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm.data import grouping
from zipflm.data.grouping import Runs, group

GOLDEN = Path(__file__).parent.parent / "golden" / "data"


@given(st.lists(st.integers(1, 20), min_size=1), st.integers(1, 50))
def test_groups_are_greedy(lengths, max_tokens):
    bounds = group(np.array(lengths, dtype=np.uint16), max_tokens)
    assert (bounds[0], bounds[-1]) == (0, len(lengths))
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        assert end == start + 1 or max(lengths[start:end]) * (end - start) <= max_tokens
        assert end == len(lengths) or max(lengths[start : end + 1]) * (end + 1 - start) > max_tokens


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=60),
    st.integers(1, 90),
    st.sampled_from([0, 1000]),
    st.sampled_from([1, 2, 7, 1000]),
    st.sampled_from([2, 5, 256]),
)
def test_rows_are_grouped_alike_run_by_run_and_many_at_once(
    lengths, max_tokens, short_run, rows, most_rows
):
    whole = group(np.array(lengths, dtype=np.uint16), max_tokens).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_SHORT_RUN", short_run)
        patch.setattr(grouping, "_ROWS", rows)
        patch.setattr(grouping, "_MOST_ROWS", most_rows)
        assert group(np.array(lengths, dtype=np.uint16), max_tokens).tolist() == whole


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
