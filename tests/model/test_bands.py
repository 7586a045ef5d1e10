import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipflm import Bands


def test_the_papers_bands():
    bands = Bands(vocab_size=267744, cutoffs=(20000, 60000), dim=1024, factor=4)
    assert bands.sizes == (20000, 40000, 207744)
    assert bands.widths == (1024, 256, 64)
    assert bands.edges == (0, 20000, 60000, 267744)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.sampled_from([1, 1.5, 2, 4]))
def test_sizes_partition_the_vocabulary(sizes, factor):
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    bands = Bands(ends[-1], tuple(ends[:-1]), dim=4096, factor=factor)
    assert list(bands.sizes) == sizes
    assert sum(bands.sizes) == bands.vocab_size
    assert list(bands.widths) == [int(4096 / factor**i) for i in range(len(sizes))]


def test_drops_a_cutoff_at_vocab_size():
    assert Bands(200, (40, 200), 32) == Bands(200, (40,), 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cutoffs": (60, 20)}, r"cutoffs=\(60, 20\).*increasing"),
        ({"cutoffs": (20, 20)}, r"cutoffs=\(20, 20\).*increasing"),
        ({"cutoffs": (0, 20)}, r"cutoffs=\(0, 20\).*positive"),
        ({"cutoffs": (20, 101)}, r"cutoff 101 exceeds vocab_size=100; lower or drop it"),
        ({"cutoffs": (20.5,)}, r"cutoffs=\(20.5,\).*tuple of integers"),
        ({"cutoffs": (20, 100, 100)}, r"cutoffs=\(20, 100, 100\).*increasing"),
        ({"cutoffs": 20}, r"cutoffs=20.*tuple"),
        ({"dim": 2}, r"factor=4.*band 1 .*= 0; use a smaller factor"),
        ({"dim": 0}, r"dim=0"),
        ({"factor": 0.5}, r"factor=0.5"),
        ({"vocab_size": 0, "cutoffs": ()}, r"vocab_size=0"),
    ],
)
def test_rejects_impossible_bands(change, message):
    values = {"vocab_size": 100, "cutoffs": (20, 60), "dim": 64, "factor": 4} | change
    with pytest.raises(ValueError, match=message):
        Bands(**values)


def test_accepts_numpy_integers():
    bands = Bands(np.int64(100), np.array([20, 60]), dim=np.int32(64))
    assert bands == Bands(100, (20, 60), 64)
    assert type(bands.cutoffs[0]) is int
