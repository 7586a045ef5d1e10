import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_streams import SENTENCES, stream

from zipflm.config import Blocks, LSTMDecoder, TransformerDecoder
from zipflm.data import windows as windows_module
from zipflm.data.windows import RunLengths, cut, group, require_short_lines, rows


@given(SENTENCES, st.integers(1, 14), st.integers(1, 5))
def test_packing_is_independent_of_piece_size(lengths, size, at_once):
    whole = cut(stream(lengths), "complete", size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_module, "_PER_STEP", at_once)
        assert cut(stream(lengths), "complete", size).tolist() == whole.tolist()


@given(SENTENCES, st.integers(1, 14))
def test_complete_blocks_contain_as_many_sentences_as_fit(lengths, size):
    tokens = stream(lengths)
    bounds = cut(tokens, "complete", size)
    assert set(bounds) <= set(tokens.offsets.tolist())
    assert (bounds[0], bounds[-1]) == (0, len(tokens))
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        inside = tokens.offsets[(tokens.offsets > start) & (tokens.offsets <= end)]
        assert end - start <= size or len(inside) == 1
        after = tokens.offsets[tokens.offsets > end]
        assert len(after) == 0 or after[0] - start > size


@pytest.mark.parametrize(("block", "limit"), [(512, 16_384), (8_192, 32_768)])
def test_rejects_lines_far_longer_than_a_block(block, limit):
    blocks, decoder = Blocks(break_mode="complete", block=block), TransformerDecoder()
    require_short_lines(limit, blocks, decoder, "a.txt", "")
    require_short_lines(limit + 1, blocks, LSTMDecoder(dim=8, hidden_dim=8), "a.txt", "")
    message = (
        f"^a.txt: has a line of {limit + 1:,} .*; cut it, or --block={limit // 4 + 1} or more$"
    )
    with pytest.raises(ValueError, match=message):
        require_short_lines(limit + 1, blocks, decoder, "a.txt", "cut it", "--block")


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
def test_rows_cover_every_token_once(cut_, sort_by_length, at_once):
    tokens, blocks = cut_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_module, "_PER_STEP", at_once)
        found = rows(tokens, blocks, sort_by_length=sort_by_length)
    windows = all_rows(found)
    spans = zip(windows.start.tolist(), windows.end.tolist(), strict=True)
    assert sorted(place for start, end in spans for place in range(start, end)) == list(
        range(len(tokens.ids))
    )
    lengths = lengths_in_order(found)
    assert lengths == found.runs.lengths_of(0, len(lengths)).tolist()
    assert all(a != b for a, b in zip(found.runs.lengths, found.runs.lengths[1:], strict=False))
    if sort_by_length:
        assert lengths == sorted(lengths)
    else:
        assert windows.start.tolist() == sorted(windows.start.tolist())


def test_sorting_by_length_is_stable():
    for unit in (1, 70_000):  # the longer ones exceed 16 bits
        lengths = [unit * number for number in [3, 1, 3, 2, 1, 3]]
        found = rows(
            stream(lengths), Blocks(break_mode="sentence", block=5, context=0), sort_by_length=True
        )
        assert lengths_in_order(found) == sorted(lengths)
        starts = [sum(lengths[:at]) for at in [1, 4, 3, 0, 2, 5]]
        assert all_rows(found).start.tolist() == starts


GOLDEN = Path(__file__).parent.parent / "golden" / "data"


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), min_size=1, max_size=8),
    st.integers(1, 60),
)
def test_groups_are_filled_up_to_max_tokens(runs, max_tokens):
    lengths = [length for length, number in runs for _ in range(number)]
    expected, first = [0], 0
    for row in range(1, len(lengths) + 1):
        is_full = row == len(lengths) or (
            max(lengths[first : row + 1]) * (row + 1 - first) > max_tokens
        )
        if is_full:
            expected.append(row)
            first = row
    assert group(RunLengths.of(np.array(lengths, dtype=np.uint16)), max_tokens).tolist() == expected


def test_groups_match_fairseq():
    golden = json.loads((GOLDEN / "dataset.json").read_text())["batch_by_size"]
    lengths = np.array(golden["sizes"])[golden["order"]]
    bounds = group(RunLengths.of(lengths), golden["max_tokens"])
    expected = np.cumsum([0] + [len(batch) for batch in golden["batches_multiple1"]])
    assert bounds.tolist() == expected.tolist()
