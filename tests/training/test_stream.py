from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from itertools import cycle, islice

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zipflm.data.token_file import TokenArray
from zipflm.distributed.processes import Process
from zipflm.presets import preset
from zipflm.runs.records import Position
from zipflm.training.stream import Stream, block_at, blocks_of

TOKENS = TokenArray.of(np.array_split(np.arange(4, 304), 40))


def make_config(label="ADP-T", *, break_mode="none", tokens=32, **training):
    config = preset("tiny", label)
    batches = replace(config.batches, break_mode=break_mode, tokens=tokens, block=16)
    return replace(config, batches=batches, training=replace(config.training, **training))


def stream(config, position=None, block=16, rank=0, world_size=1):
    process = Process(rank, world_size, torch.device("cpu"))
    return closing(Stream(config, TOKENS, process, position or Position(), block))


def assert_equal(one, other):
    for name in ("words", "targets", "scored"):
        assert torch.equal(getattr(one, name), getattr(other, name))


STEPS = st.lists(st.tuples(st.sampled_from([4, 7, 16]), st.integers(0, 25)), max_size=4)


@settings(max_examples=40)
@given(STEPS, st.sampled_from([4, 7, 16]), st.sampled_from([1, 2, 3]))
def test_resumes_from_a_saved_place(steps, block, world_size):
    """Across epochs and changes of the block length."""
    config = make_config()
    with stream(config, world_size=world_size, rank=world_size - 1) as going:
        for length, number in steps:
            going.use_block(length)
            for _ in range(number):
                going.next()
        saved = Position(**asdict(going.position))
        going.use_block(block)
        with stream(config, saved, block, world_size - 1, world_size) as other:
            assert other.position == going.position and other.epochs == going.epochs
            for _ in range(3):
                assert_equal(other.next(), going.next())
            assert other.position == going.position


@settings(max_examples=12)
@given(st.integers(1, 4), st.sampled_from(["none", "complete", "sentence"]))
def test_processes_share_one_sequence(world_size, break_mode):
    config = make_config(break_mode=break_mode)
    number = 20 // world_size * world_size
    with stream(config) as alone:
        expected = [alone.next() for _ in range(number)]
        position = alone.position
    with ExitStack() as stack:
        streams = [
            stack.enter_context(stream(config, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        for batch, turn in zip(expected, cycle(streams), strict=False):
            assert_equal(turn.next(), batch)
        assert all(stream.position == position for stream in streams)


def test_an_epoch_has_every_token_once():
    with stream(make_config()) as batches:
        seen = []
        while batches.epochs < 1:
            batch = batches.next()
            seen += batch.targets[batch.scored].tolist()
        assert batches.position == Position(1, 0, batches.position.total)
    assert sorted(seen) == list(range(4, 304))


def test_pads_batches_for_compiled_models(block=7):
    """300 tokens are not a whole number of batches. Padding is not scored."""
    config = make_config()
    compiled = make_config(compile=True)
    with stream(config, block=block) as plain, stream(compiled, block=block) as full:
        for _ in range(2 * plain.position.total):
            expected, batch = plain.next(), full.next()
            assert batch.words.shape == (32 // block, block)
            assert torch.equal(batch.targets[batch.scored], expected.targets[expected.scored])
            assert torch.equal(batch.words[batch.scored], expected.words[expected.scored])


def test_padded_unique_tokens_never_shrink_for_compiled_models():
    config = make_config("CNN", break_mode="sentence", compile=True)
    tokens = TokenArray.of([[5] * length + [2] for length in (15, 7)] + [range(5, 20)])
    process = Process(0, 1, torch.device("cpu"))
    with closing(Stream(config, tokens, process, Position(), 16)) as batches:
        sizes = []
        for batch in (batches.next() for _ in range(20)):
            assert torch.equal(batch.unique.ids_U[batch.unique.indices_BT], batch.words)
            assert batch.inputs is batch.unique
            sizes.append(len(batch.unique.ids_U))
    assert sizes == sorted(sizes) and len({*sizes}) < 3


@given(st.lists(st.integers(1, 20), max_size=3, unique=True), st.booleans(), st.integers(1, 60))
def test_stages_follow_each_other(ends, is_throughout, max_updates):
    fractions = [end / 20 for end in sorted(ends)]
    if is_throughout and fractions:
        fractions[-1] = 1.0
    stages = tuple(zip(fractions, islice((4, 8, 12), len(fractions)), strict=True))
    config = make_config(stages=stages, max_updates=max_updates)
    lengths = [block_at(config, update) for update in range(max_updates)]
    assert lengths == sorted(lengths)
    assert set(lengths) <= set(blocks_of(config))
    for end, length in stages:
        assert lengths[round(end * max_updates) :].count(length) == 0
    assert (lengths[-1] == 16) == (not stages or round(stages[-1][0] * max_updates) < max_updates)
