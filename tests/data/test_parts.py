import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_streams import SENTENCES, stream

from zipflm.config import Blocks
from zipflm.data import windows as windows_module
from zipflm.data.windows import cut, rows


@given(SENTENCES, st.integers(1, 14), st.integers(1, 5))
def test_packing_sentences_piecemeal_changes_nothing(lengths, size, at_once):
    whole = cut(stream(lengths), "complete", size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_module, "_AT_ONCE", at_once)
        assert cut(stream(lengths), "complete", size).tolist() == whole.tolist()


@given(SENTENCES, st.integers(1, 14))
def test_complete_blocks_hold_as_many_sentences_as_fit(lengths, size):
    tokens = stream(lengths)
    bounds = cut(tokens, "complete", size)
    assert set(bounds) <= set(tokens.offsets.tolist())
    assert (bounds[0], bounds[-1]) == (0, len(tokens))
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        inside = tokens.offsets[(tokens.offsets > start) & (tokens.offsets <= end)]
        assert end - start <= size or len(inside) == 1
        after = tokens.offsets[tokens.offsets > end]
        assert len(after) == 0 or after[0] - start > size


def all_rows(found):
    return found.windows(np.arange(found.runs.num_rows))


def lengths_in_order(found):
    windows = all_rows(found)
    return (windows.end - windows.first).tolist()


@st.composite
def cuts(draw):
    block = draw(st.integers(1, 14))
    mode = draw(st.sampled_from(["none", "complete", "sentence"]))
    context = draw(st.integers(0, block - 1))
    return stream(draw(SENTENCES)), Blocks(break_mode=mode, block=block, context=context)


@given(cuts(), st.booleans(), st.integers(1, 5))
def test_rows_cover_every_token_once_and_know_their_lengths(cut_, sorts, at_once):
    tokens, blocks = cut_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_module, "_AT_ONCE", at_once)
        found = rows(tokens, blocks, sorts=sorts)
    windows = all_rows(found)
    spans = zip(windows.start.tolist(), windows.end.tolist(), strict=True)
    assert sorted(place for start, end in spans for place in range(start, end)) == list(
        range(len(tokens.ids))
    )
    lengths = lengths_in_order(found)
    assert lengths == found.runs.lengths_of(0, len(lengths)).tolist()
    assert all(a != b for a, b in zip(found.runs.lengths, found.runs.lengths[1:], strict=False))
    if sorts:
        assert lengths == sorted(lengths)
    else:
        assert windows.start.tolist() == sorted(windows.start.tolist())


@given(cuts())
def test_parts_of_one_size_need_no_boundaries(cut_):
    """The arithmetic of mode `none` is that of boundaries written down."""
    tokens, blocks = cut_
    size = blocks.block - blocks.context
    plain = windows_module._rows_between(cut(tokens, "none", size), blocks, sorts=False)
    found = windows_module._even_rows(len(tokens.ids), blocks, sorts=False)
    for name in ("first", "start", "end"):
        one, other = (getattr(all_rows(each), name).tolist() for each in (plain, found))
        assert one == other
    assert found.runs.lengths.tolist() == plain.runs.lengths.tolist()
    assert found.runs.ends.tolist() == plain.runs.ends.tolist()


def test_rows_of_one_length_keep_their_order_however_long_they_are():
    for unit in (1, 70_000):  # the longer ones have no room in 16 bits
        lengths = [unit * number for number in [3, 1, 3, 2, 1, 3]]
        found = rows(stream(lengths), Blocks(break_mode="sentence", block=5, context=0), sorts=True)
        assert lengths_in_order(found) == sorted(lengths)
        starts = [sum(lengths[:at]) for at in [1, 4, 3, 0, 2, 5]]
        assert all_rows(found).start.tolist() == starts


def test_a_hundred_billion_tokens_in_blocks_are_planned_at_once():
    class Endless:
        ids = np.broadcast_to(np.uint16(7), 512 * 10**8 + 5)

    found = rows(Endless(), Blocks(break_mode="none", block=512, context=0), sorts=True)
    assert found.runs.ends.tolist() == [1, 10**8 + 1]
    ends = found.windows(np.array([0, 1, 10**8])).end
    assert ends.tolist() == [512 * 10**8 + 5, 512, 512 * 10**8]
