import itertools
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_streams import SENTENCES, stream

from zipflm.config import Blocks
from zipflm.data.batches import Batches, Permutation, unique_tokens
from zipflm.data.token_file import TokenArray
from zipflm.data.windows import cut

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
MODES = {"none": "none", "complete": "complete", "sentence": "eos"}


@st.composite
def plans(draw):
    tokens = stream(draw(SENTENCES))
    block = draw(st.integers(1, 14))
    return tokens, {
        "break_mode": draw(st.sampled_from(list(MODES))),
        "block": block,
        "context": draw(st.integers(0, block - 1)),
        "max_tokens": draw(st.integers(block, 40)),
        "seed": draw(st.integers(0, 5)),
        "shuffle": draw(st.booleans()),
    }


def batches_of(tokens, *, break_mode, block, context=0, **options):
    return Batches(tokens, Blocks(break_mode=break_mode, block=block, context=context), **options)


def golden_tokens(split):
    blocks = np.load(GOLDEN / "blocks.npz")
    offsets = np.concatenate([[0], np.cumsum(blocks[f"{split}.sizes"])])
    return blocks, TokenArray(blocks[f"{split}.ids"], offsets)


@pytest.mark.parametrize("size", [64, 16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_blocks_match_fairseq(split, mode, size):
    blocks, tokens = golden_tokens(split)
    name = f"{split}.{MODES[mode]}.{64 if mode == 'sentence' else size}"
    bounds = cut(tokens, mode, size)
    assert np.array_equal(np.stack([bounds[:-1], bounds[1:]], axis=1), blocks[f"{name}.slices"])
    batches = batches_of(tokens, break_mode=mode, block=size, max_tokens=200, shuffle=False)
    rows = sorted(
        (int(windows.start[i]), batch.words[i], batch.targets[i], batch.scored[i])
        for number, batch in enumerate(batches.epoch(0))
        for windows in [batches.windows(0, number)]
        for i in range(len(batch.words))
    )
    sources = torch.cat([words[scored] for _, words, _, scored in rows])
    targets = torch.cat([targets[scored] for _, _, targets, scored in rows])
    assert np.array_equal(sources, blocks[f"{name}.source"])
    assert np.array_equal(targets, blocks[f"{name}.target"])


@pytest.mark.parametrize("name", json.loads((GOLDEN / "context_window_valid.json").read_text()))
def test_context_windows_match_fairseq(name):
    golden = json.loads((GOLDEN / "context_window_valid.json").read_text())[name]
    wanted = [
        (src[:length], target[:length], start)
        for batch in golden
        for src, length, target, start in zip(
            batch["src_tokens"],
            batch["src_lengths"],
            batch["target"],
            batch["start_indices"],
            strict=True,
        )
    ]
    mode, block, context, _ = name.split(".")
    batches = batches_of(
        golden_tokens("valid")[1],
        break_mode=mode,
        block=int(block.removeprefix("tps")),
        context=int(context.removeprefix("ctx")),
        max_tokens=256,
        shuffle=False,
    )
    found = []
    for number, batch in enumerate(batches.epoch(0)):
        windows = batches.windows(0, number)
        for row, length in enumerate(windows.end - windows.first):
            scored = batch.scored[row, :length]
            start = int(windows.start[row] - windows.first[row])
            assert scored.tolist() == [place >= start for place in range(length)]
            target = batch.targets[row, :length].masked_fill(~scored, 1).tolist()
            found.append((batch.words[row, :length].tolist(), target, start))
    assert found == wanted


@given(plans(), st.integers(1, 4), st.integers(0, 3))
def test_ranks_score_every_target_once(plan, world_size, epoch):
    tokens, arguments = plan
    scored, lengths = [], set()
    for rank in range(world_size):
        batches = batches_of(tokens, **arguments, rank=rank, world_size=world_size)
        found = list(batches.epoch(epoch))
        lengths |= {len(batches), len(found)}
        scored += [batch.targets[batch.scored] for batch in found]
    assert sorted(torch.cat(scored).tolist()) == tokens.ids.tolist()
    assert len(lengths) == 1


@given(plans())
def test_rows_match_the_stream(plan):
    tokens, arguments = plan
    batches = batches_of(tokens, **arguments)
    shifted = [2, *tokens.ids.tolist()]
    for number, batch in enumerate(batches.epoch(3)):
        windows = batches.windows(3, number)
        for row, (first, start, end) in enumerate(
            zip(windows.first, windows.start, windows.end, strict=True)
        ):
            length = end - first
            assert batch.words[row, :length].tolist() == shifted[first:end]
            assert batch.targets[row, :length].tolist() == shifted[first + 1 : end + 1]
            assert set(batch.words[row, length:].tolist()) <= {1}
            assert set(batch.targets[row, length:].tolist()) <= {1}
            assert not batch.scored[row, length:].any()
            room = max(0, arguments["block"] - (end - start))
            assert start - first == min(arguments["context"], room, start)


@given(plans())
def test_padded_batches_respect_max_tokens(plan):
    tokens, arguments = plan
    for batch in batches_of(tokens, **arguments).epoch(0):
        assert batch.words.numel() <= arguments["max_tokens"] or len(batch.words) == 1
        assert batch.words.shape == batch.targets.shape == batch.scored.shape


@given(plans(), st.integers(0, 3), st.integers(0, 30), st.integers(1, 3))
def test_epochs_can_be_resumed_anywhere(plan, epoch, start, world_size):
    tokens, arguments = plan
    arguments = arguments | {"world_size": world_size, "rank": world_size - 1}
    whole = list(batches_of(tokens, **arguments).epoch(epoch))
    used = batches_of(tokens, **arguments)
    list(used.epoch(epoch + 1))
    resumed = list(used.epoch(epoch, start))
    assert len(resumed) == max(0, len(whole) - start)
    for one, other in zip(whole[start:], resumed, strict=True):
        assert torch.equal(one.words, other.words)
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.scored, other.scored)


def test_shuffling_depends_on_seed_and_epoch_only():
    tokens = stream([7] * 100)

    def first(seed, epoch, shuffle=True):
        batches = batches_of(
            tokens, break_mode="none", block=7, max_tokens=14, seed=seed, shuffle=shuffle
        )
        return torch.cat([batch.targets.flatten() for batch in batches.epoch(epoch)]).tolist()

    assert first(1, 0) == first(1, 0)
    assert first(1, 0) != first(1, 1)
    assert first(1, 0) != first(2, 0)
    assert first(1, 0, shuffle=False) == first(2, 5, shuffle=False) == tokens.ids.tolist()


def test_shuffled_sentences_are_batched_by_length():
    tokens = stream([3, 9] * 50)
    batches = batches_of(tokens, break_mode="sentence", block=64, max_tokens=27, shuffle=True)
    widths = [batch.words.shape[1] for batch in batches.epoch(0)]
    assert set(widths) == {3, 9}
    assert widths != sorted(widths)
    rows = [{frozenset(b.targets[:, 0].tolist()) for b in batches.epoch(e)} for e in (0, 1)]
    assert rows[0] != rows[1]


def test_large_batches_use_bounded_memory():
    tokens = stream([1] * 300_000)
    batches = batches_of(
        tokens, break_mode="sentence", block=8, max_tokens=10_000, seed=0, shuffle=True
    )
    tracemalloc.start()
    next(batches.epoch(0))
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def order(size, *key, label=0):
    places = np.arange(size)
    return Permutation(*key)(places, size, np.full_like(places, label))


@given(st.integers(1, 3000), st.integers(0, 2**40), st.integers(0, 2**40))
def test_permutation_is_a_bijection(size, key, label):
    assert np.sort(order(size, key, label=label)).tolist() == list(range(size))


def test_permutation_is_vectorised_over_sizes_and_labels():
    random = Permutation(3, 1)
    whole = {(size, label): order(size, 3, 1, label=label) for size in (5, 900) for label in (0, 9)}
    queries = [(place, size, label) for size, label in whole for place in range(size)]
    np.random.default_rng(0).shuffle(queries)
    places, sizes, labels = (np.array(column) for column in zip(*queries, strict=True))
    expected = [whole[size, label][place] for place, size, label in queries]
    assert random(places, sizes, labels).tolist() == expected
    assert random(places[:1], sizes[:1], labels[:1]).tolist() == expected[:1]


def test_permutations_of_four_are_equally_likely():
    tries = 4800
    found = Counter(tuple(order(4, key)) for key in range(tries))
    expected = tries / 24
    assert set(found) == set(itertools.permutations(range(4)))
    assert max(abs(number - expected) for number in found.values()) < 0.4 * expected
    assert {tuple(order(4, 5, label=label)) for label in range(tries)} == set(found)


@pytest.mark.parametrize("size", [1000, 1 << 16, (1 << 16) + 1])
def test_permutation_is_uncorrelated(size):
    """Within five standard deviations of a true shuffle."""
    for key in range(8):
        found = order(size, key, 2)
        assert abs(np.corrcoef(np.arange(size), found)[0, 1]) < 5 / size**0.5
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5 / size**0.5
        # A shuffle has one fixed point on average, and about a quarter of its steps repeat.
        assert np.count_nonzero(found == np.arange(size)) < 10
        assert len(np.unique(np.diff(found))) > 0.68 * size


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_unique_tokens_restore_the_text(words):
    text = torch.tensor([words])
    found = unique_tokens(text)
    assert torch.equal(found.ids_U[found.indices_BT], text)
    assert found.shape == text.shape
    assert found.ids_U.tolist() == sorted(set(words))


def test_rejects_large_blocks_and_empty_splits():
    arguments = {"break_mode": "none", "block": 5, "shuffle": False}
    with pytest.raises(ValueError, match=r"max_tokens=4: smaller than a block \(5\)"):
        batches_of(stream([4, 4]), max_tokens=4, **arguments)
    with pytest.raises(ValueError, match="empty split"):
        batches_of(TokenArray.of([]), max_tokens=10, **arguments)
