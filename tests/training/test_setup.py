"""What is checked and counted before the first update."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_runs import config_of

from zipflm.data.prepare import prepare
from zipflm.presets import preset
from zipflm.training.distributed import Process
from zipflm.training.setup import (
    accumulation,
    check_data,
    check_processes,
    overview,
    tokens_per_batch,
)
from zipflm.training.stream import blocks_of


def processes(number):
    return Process(0, number, torch.device("cpu"))


@st.composite
def configs(draw):
    block = draw(st.integers(1, 40))
    stage = draw(st.none() | st.integers(1, 40))
    config = preset("tiny", "ADP-T")
    tokens = draw(st.integers(max(block, stage or 1), 200))
    batches = replace(config.batches, block=block, tokens=tokens)
    training = replace(
        config.training,
        tokens_per_update=draw(st.integers(1, 2000)),
        stages=() if stage is None else ((0.5, stage),),
    )
    return replace(config, batches=batches, training=training)


@given(configs(), st.integers(1, 4))
def test_updates_are_whole_or_the_number_it_suggests_makes_them_so(config, world_size):
    process = processes(world_size)
    try:
        accumulation(config, process)
    except ValueError as error:
        wanted = int(re.search(r"use training.tokens_per_update=(\d+)", str(error))[1])
        config = replace(config, training=replace(config.training, tokens_per_update=wanted))
    for block in blocks_of(config):
        tokens = tokens_per_batch(config, block)
        assert tokens % block == 0 and config.batches.tokens - block < tokens
        number = accumulation(config, process, block)
        assert number * tokens * world_size == config.training.tokens_per_update


def test_tokens_per_update_must_be_reachable(word_data):
    config = config_of(word_data, "training.tokens_per_update=128")
    assert accumulation(config, processes(2)) == 1
    with pytest.raises(ValueError, match="use training.tokens_per_update=192"):
        accumulation(config, processes(3))


def test_a_config_for_another_vocabulary_is_refused(word_data, other_data):
    check_data(config_of(word_data), word_data)
    sizes = len(word_data.vocabulary), len(other_data.vocabulary)
    assert sizes[0] != sizes[1]
    with pytest.raises(ValueError, match=f"vocab_size={sizes[0]}: .* has {sizes[1]} ids"):
        check_data(config_of(word_data), other_data)


def test_the_parts_in_the_overview_add_up_to_the_model(word_data):
    config = config_of(word_data, "training.stages=0.5:8")
    first, *rest = overview(config, processes(2))
    total = int(re.search(r"([\d,]+) parameters", first)[1].replace(",", ""))
    parts = [line for line in rest if line.startswith("  ")]
    assert sum(int(line.split()[-1].replace(",", "")) for line in parts) == total
    # Both block lengths fill 64 tokens, so one line speaks for both.
    assert rest[len(parts) :] == ["128 tokens per update = 2 device(s) x 64 tokens x 1 accumulated"]


def test_the_overview_says_that_tables_are_sharded(word_data):
    config = config_of(word_data, "training.tables=sharded")
    *_, last = overview(config, processes(2))
    assert last == "each of 2 devices has its own rows of the tables"
    compiled = config_of(word_data, "training.tables=sharded", "training.compile=true")
    *_, last = overview(compiled, processes(2))
    assert last.endswith("; of the model, the decoder alone is compiled")
    *_, last = overview(config, processes(1))
    assert "1 device(s)" in last


def test_a_text_of_pieces_does_not_pass_for_words(tmp_path):
    (tmp_path / "train.txt").write_text("th@@ e c@@ at s@@ at\n" * 20)
    data = prepare(tmp_path / "d", {"train": [tmp_path / "train.txt"]})
    with pytest.raises(ValueError, match=r"60 of the 140 words .* end in @@: it was split"):
        check_data(config_of(data), data)


def test_sparse_gradients_need_one_process_or_gloo(word_data):
    config = config_of(word_data, "tie=none", "input.sparse=true")
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for process in (Process(0, 1, cpu), Process(0, 2, cpu), Process(0, 1, gpu)):
        check_processes(config, process)
    check_processes(config_of(word_data), Process(0, 2, gpu))
    with pytest.raises(ValueError, match="input.sparse=True: 2 processes exchange sparse gradi"):
        check_processes(config, Process(0, 2, gpu))
