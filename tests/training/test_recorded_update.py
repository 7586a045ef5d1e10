"""Updates recorded as CUDA graphs give the same results."""

import pytest
import torch
from training_runs import config_of

from zipflm.config import AdamW, Muon, Nesterov
from zipflm.data.batches import Batches
from zipflm.distributed.processes import Process
from zipflm.runs.load import untrained_model
from zipflm.training import optimizers, step
from zipflm.training.cuda_graphs import UpdateRunner
from zipflm.training.step import build_learner

OPTIMIZERS = [Nesterov(), AdamW(), Muon()]


def learner_on(device, data, optimizer, *overrides):
    torch.manual_seed(0)
    config = config_of(data, *overrides)
    process = Process(0, 1, torch.device(device))
    learner = build_learner(config, untrained_model(config, data.vocabulary), process)
    learner.optimizers = optimizers.build(optimizer, learner.model)
    return learner, config


def batches_on(device, data, config, block=None):
    blocks = config.batches.blocks
    plan = Batches(data.tokens("train"), blocks, max_tokens=64, shuffle=False)
    whole = [batch for batch in plan.epoch(0) if batch.scored.all()]
    return [batch.to(device) for batch in whole]


def train(update, learner, batches, number=8):
    """Two micro-batches per update, and a different learning rate each time."""
    results = []
    for index in range(number):
        optimizers.set_rates(learner.optimizers, 0.5 ** (1 + index % 3))
        torch.manual_seed(index)
        pair = [batches[2 * index % len(batches)], batches[(2 * index + 1) % len(batches)]]
        results.append(step.UpdateResult(*update(pair, index == 6).tolist()))
    return results


def test_does_not_record_on_a_cpu(word_data):
    learner, config = learner_on("cpu", word_data, Nesterov())
    updates = UpdateRunner(learner, config)
    results = train(updates, learner, batches_on("cpu", word_data, config))
    other, _ = learner_on("cpu", word_data, Nesterov())
    expected = train(
        lambda *arguments: step.update(other, *arguments),
        other,
        batches_on("cpu", word_data, config),
    )
    assert results == expected and not updates.is_recorded
    assert [result.stop for result in results] == [0] * 6 + [1, 0]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_recorded_updates_equal_plain_ones(word_data, optimizer, precision, monkeypatch):
    # The default stream can be that of another GPU.
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", object())
    overrides = [f"training.dtype={precision}", "training.compile=true"]
    dropouts = ["decoder.dropout=0.1", "decoder.relu_dropout=0.1", "decoder.attention_dropout=0.1"]
    learner, config = learner_on("cuda", word_data, optimizer, *overrides, *dropouts)
    batches = batches_on("cuda", word_data, config)
    updates = UpdateRunner(learner, config)
    results = train(updates, learner, batches)
    assert updates.is_recorded
    plain, _ = learner_on("cuda", word_data, optimizer, *overrides, *dropouts)
    expected = train(lambda *arguments: step.update(plain, *arguments), plain, batches)
    assert [result.stop for result in results] == [0] * 6 + [1, 0]
    for ours, theirs in zip(results, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3 if precision != "float32" else 1e-5)
    for ours, theirs in zip(learner.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("mode", ["attention", "layer"])
def test_records_recomputation(word_data, mode):
    """Including the dropout masks, or the results would differ."""
    dropouts = ["decoder.dropout=0.1", "decoder.relu_dropout=0.1", "decoder.attention_dropout=0.1"]
    overrides = ["training.dtype=bfloat16", "training.compile=true", *dropouts]
    results = []
    for what in ("none", mode):
        more = f"training.recompute={what}"
        learner, config = learner_on("cuda", word_data, Nesterov(), *overrides, more)
        updates = UpdateRunner(learner, config)
        results.append(train(updates, learner, batches_on("cuda", word_data, config)))
        assert updates.is_recorded and learner.compiled
    for theirs, ours in zip(*results, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_records_again_for_another_shape(word_data):
    learner, config = learner_on("cuda", word_data, Nesterov(), "training.compile=true")
    batches = batches_on("cuda", word_data, config)
    updates = UpdateRunner(learner, config)
    train(updates, learner, batches)
    assert updates.is_recorded
    updates(batches[:1])
    assert not updates.is_recorded
    for _ in range(3):
        result = updates(batches[:1])
    assert updates.is_recorded
    assert step.UpdateResult(*result.tolist()).tokens == batches[0].scored.sum().item()
