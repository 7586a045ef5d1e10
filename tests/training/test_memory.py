"""Out of memory: what the explanation suggests is possible, and what it says it tried it did."""

import re
import weakref
from dataclasses import replace

import pytest
import torch
from training_runs import config_of

from zipflm.overrides import override
from zipflm.runs.building import untrained_model
from zipflm.training import memory, step
from zipflm.training.distributed import Process
from zipflm.training.setup import accumulation, build_learner

CPU = Process(0, 1, torch.device("cpu"))
FULL = torch.OutOfMemoryError("CUDA out of memory")


def make(data, *overrides):
    config = config_of(data, *overrides)
    return config, build_learner(config, untrained_model(config, data.vocabulary), CPU)


def allow(monkeypatch, tokens):
    """Let only so many tokens through at once; the numbers of those tried, in a list."""
    true_forward, tried = step.forward, []

    def forward(learner, batch):
        tried.append(batch.words.numel())
        if batch.words.numel() > tokens:
            raise FULL
        return true_forward(learner, batch)

    monkeypatch.setattr(step, "forward", forward)
    return tried


SIZES = {
    # tokens, block and tokens per update; room for so many; what to use
    "halves": ((64, 16, 128), 20, 16),
    "the first half": ((64, 16, 128), 40, 32),
    # Five blocks: two of them make up no whole update of 80 tokens, one does.
    "an odd number of blocks": ((80, 16, 80), 40, 20),
}


@pytest.mark.parametrize("case", SIZES)
def test_the_size_it_names_fits_and_makes_whole_updates(word_data, monkeypatch, case):
    (tokens, block, per_update), room, expected = SIZES[case]
    config, learner = make(
        word_data,
        f"batches.tokens={tokens}",
        f"batches.block={block}",
        f"training.tokens_per_update={per_update}",
    )
    tried = allow(monkeypatch, room)
    text = memory.explanation(FULL, config, learner)
    assert f"lower batches.tokens to {expected}, which was tried too and fits" in text
    assert max(tried) < tokens and tried[-1] <= room
    accumulation(override(config, [f"batches.tokens={expected}"]), CPU)


def test_where_nothing_fits_it_names_other_ways(word_data, monkeypatch):
    config, learner = make(word_data)
    allow(monkeypatch, 0)
    text = memory.explanation(FULL, config, learner)
    assert re.search(r"batches.block \(now 16\), make the model smaller", text)
    assert "fits" not in text


def test_with_several_processes_it_does_not_claim_to_have_tried(word_data, monkeypatch):
    config, learner = make(word_data)
    learner.process = Process(0, 2, torch.device("cpu"))
    tried = allow(monkeypatch, 1000)
    text = memory.explanation(FULL, config, learner)
    assert "lower batches.tokens to 32, which could not be tried" in text
    assert not tried


def test_the_failed_batch_is_let_go_before_trying(word_data, monkeypatch):
    """What the frames of the error hold would leave no room for anything."""
    config, learner = make(word_data)
    held = []

    def fail():
        activations = torch.zeros(3)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    alive = []
    monkeypatch.setattr(memory, "_fits", lambda *_: alive.append(held[0]()) or True)
    try:
        fail()
    except RuntimeError as error:
        memory.explanation(error, config, learner)
    assert alive == [None]


def test_another_error_while_trying_is_not_hidden(word_data, monkeypatch):
    config, learner = make(word_data)

    def fail(learner, batch):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(step, "forward", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        memory.explanation(FULL, config, learner)


def test_a_model_without_room_is_explained_and_other_errors_are_left_alone(word_data):
    config = replace(config_of(word_data), name="mine")
    sharded = replace(config, training=replace(config.training, parallel="fsdp"))
    three, full = Process(0, 3, CPU.device), "[enforce fail] DefaultCPUAllocator: no memory"
    for asked, process, message in (
        (config, CPU, "2,864 parameters; lower .* or use several devices with training.parallel"),
        (config, three, "2,864 parameters; lower .* or use several devices with training.parallel"),
        (sharded, three, "2,864 parameters over 3 processes; lower .* or use more of them"),
    ):
        with (
            pytest.raises(ValueError, match=f"mine: no room for its {message}"),
            memory.model_explained(asked, process),
        ):
            raise RuntimeError(full)
    with pytest.raises(RuntimeError, match="shapes differ"), memory.model_explained(config, CPU):
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize("room", [20, 0])
def test_computing_activations_again_is_a_remedy_until_all_are(word_data, monkeypatch, room):
    allow(monkeypatch, room)
    for recompute, is_named in {"none": True, "attention": True, "layer": False}.items():
        config, learner = make(word_data, f"training.recompute={recompute}")
        text = memory.explanation(FULL, config, learner)
        assert ("or set training.recompute=layer" in text) == is_named
