import json

import pytest
import torch
from training_runs import SMALL, config_of, disturb, reports, run
from waiting import no_waiting

from zipflm.config import AdamW, Blocks, Muon, Nesterov
from zipflm.data.batches import Batch, Batches
from zipflm.distributed.processes import Process
from zipflm.runs.load import untrained_model
from zipflm.training import optimizers, step
from zipflm.training.step import build_learner

CPU = Process(0, 1, torch.device("cpu"))
SPARSE = ["tie=none", "input.sparse=true", "training.optimizer=AdamW"]
OPTIMIZERS = [Nesterov(), AdamW(weight_decay=0.1), Muon(weight_decay=0.1, matrix_weight_decay=0.1)]


def make_learner(data, *overrides):
    config = config_of(data, "decoder.dropout=0", "output.tail_dropout=0", *overrides)
    return build_learner(config, untrained_model(config, data.vocabulary), CPU)


def some_batches(data, number=4):
    batches = Batches(
        data.tokens("train"),
        Blocks(break_mode="none", block=16),
        max_tokens=64,
        shuffle=True,
        seed=1,
    )
    return [batches.batch(0, index) for index in range(number)]


def joined(batches):
    return Batch(
        torch.cat([batch.words for batch in batches]),
        torch.cat([batch.targets for batch in batches]),
        torch.cat([batch.scored for batch in batches]),
    )


def learn(learner, batches):
    optimizers.set_rates(learner.optimizers, 0.1)
    return step.UpdateResult(*step.update(learner, batches).tolist())


def snapshot(learner):
    state = optimizers.state_tensors(learner.optimizers, learner.model)
    return {k: v.clone() for k, v in (learner.model.state_dict() | state).items()}


def test_accumulating_equals_one_large_batch(word_data):
    """Even if micro-batches have different numbers of scored tokens."""
    batches = some_batches(word_data)
    batches[1].scored[2:] = False
    apart, together = make_learner(word_data), make_learner(word_data)
    first, second = learn(apart, batches), learn(together, [joined(batches)])
    assert first.tokens == second.tokens == sum(int(b.scored.sum()) for b in batches)
    assert first.nll == pytest.approx(second.nll, rel=1e-6)
    assert first.norm == pytest.approx(second.norm, rel=1e-5)
    for name, value in snapshot(apart).items():
        torch.testing.assert_close(value, snapshot(together)[name], rtol=1e-4, atol=1e-6)


def test_clips_the_gradient_of_the_mean(word_data):
    learner = make_learner(word_data, "training.clip_norm=0.1", "training.optimizer.momentum=0")
    before = snapshot(learner)
    model = untrained_model(config_of(word_data), word_data.vocabulary).eval()
    (batch,) = some_batches(word_data, 1)
    model.nll(batch.words, batch.targets, batch.scored).mean().backward()
    mean_norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))
    result = learn(learner, [batch])
    assert result.norm == pytest.approx(mean_norm.item(), rel=1e-5)
    assert result.norm > 0.1
    after = learner.model.state_dict()
    moved = torch.cat([(after[name] - before[name]).flatten() for name in after])
    assert torch.linalg.vector_norm(moved).item() == pytest.approx(0.1 * 0.1, rel=1e-4)


@pytest.mark.parametrize(
    "optimizer", [*OPTIMIZERS, "sparse"], ids=lambda o: o if o == "sparse" else type(o).__name__
)
def test_a_bad_gradient_changes_nothing(word_data, optimizer):
    learner = make_learner(word_data, *(SPARSE if optimizer == "sparse" else []))
    weight = learner.model.input.embeddings[0]
    if optimizer != "sparse":
        learner.optimizers = optimizers.build(optimizer, learner.model)
        weight = learner.model.decoder.layers[0].ffn_in.weight
    batches = some_batches(word_data)
    assert not learn(learner, batches[:1]).bad
    before = snapshot(learner)
    hook = weight.register_hook(lambda grad: grad * float("nan"))
    assert learn(learner, batches[1:2]).bad
    hook.remove()
    after = snapshot(learner)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not learn(learner, batches[2:3]).bad
    assert all(torch.isfinite(value).all() for value in snapshot(learner).values())


def test_loss_scale_halves_on_overflow_and_doubles_later():
    scale = step.LossScale(True, torch.device("cpu"))
    start = scale.value.item()
    scale.adapt(torch.tensor(True))
    assert scale.value.item() == start / 2
    for _ in range(2000):
        scale.adapt(torch.tensor(False))
    assert scale.value.item() == start


def test_saves_the_loss_scale():
    value = 1.0  # also the value if scaling is off
    scale, resumed = (step.LossScale(True, torch.device("cpu")) for _ in range(2))
    scale.value.fill_(value)
    scale.num_good.fill_(1999)
    resumed.load(json.loads(json.dumps(scale.dump())))
    for one in (scale, resumed):
        one.adapt(torch.tensor(False))
    assert resumed.dump() == scale.dump() == (2 * value, 0)


def test_the_loss_scale_does_not_change_the_update(word_data):
    plain, scaled = make_learner(word_data), make_learner(word_data)
    scaled.scale.value.fill_(2.0**10)
    batches = some_batches(word_data)
    assert learn(plain, batches).norm == pytest.approx(learn(scaled, batches).norm, rel=1e-6)
    for name, value in snapshot(plain).items():
        torch.testing.assert_close(value, snapshot(scaled)[name], rtol=1e-5, atol=1e-7)


def test_results_arrive_one_update_later():
    reader = step.ResultReader()
    vectors = [torch.tensor([float(n), 1, 1, 1, 0, 0], dtype=torch.float64) for n in range(3)]
    arrived = [[result.nll for result in reader.send(vector)] for vector in vectors]
    assert arrived == [[], [0.0], [1.0]]
    assert [result.nll for result in reader.drain()] == [2.0]
    assert reader.drain() == []


def test_counts_words_of_sub_word_models(bpe_data):
    ends_word = torch.from_numpy(bpe_data.ends_word)
    overrides = ["input.dim=16", "output.dim=16"]
    base = [line for line in SMALL if not line.startswith(("input", "output"))]
    config = config_of(bpe_data, *overrides, preset="tiny/BPE-T", base=base)
    learner = build_learner(config, untrained_model(config, bpe_data.vocabulary), CPU, ends_word)
    batches = some_batches(bpe_data, 3)
    batches[0].scored[1:] = False
    result = learn(learner, batches)
    assert result.words == sum(int(ends_word[b.targets[b.scored]].sum()) for b in batches)
    assert 0 < result.words < result.tokens


def test_a_skipped_update_counts_as_an_attempt(word_data, tmp_path, monkeypatch):
    """It uses up its batches and a step of the schedule."""
    every = ["training.report_every=1", "training.max_updates=8"]
    run(word_data, tmp_path / "plain", *every)
    disturb(monkeypatch, bad={3, 4})
    run(word_data, tmp_path / "poisoned", *every)
    plain, poisoned = (reports(tmp_path / name) for name in ("plain", "poisoned"))
    assert poisoned[-1].skipped == 2
    for name in ("update", "epoch", "learning_rate"):
        assert [getattr(line, name) for line in poisoned] == [getattr(line, name) for line in plain]


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_an_update_on_a_gpu_never_waits(word_data, optimizer, precision):
    """With subwords, a loss scale, clipping and a request to stop."""
    config = config_of(word_data, f"training.dtype={precision}")
    process = Process(0, 1, torch.device("cuda"))
    ends_word = torch.arange(len(word_data.vocabulary)) % 2 == 0
    learner = build_learner(
        config, untrained_model(config, word_data.vocabulary), process, ends_word
    )
    learner.optimizers = optimizers.build(optimizer, learner.model)
    optimizers.set_rates(learner.optimizers, 0.1)
    batches = [batch.to(process.device) for batch in some_batches(word_data)]
    for _ in range(2):
        step.update(learner, batches)  # warm-up
    with no_waiting():
        vector = step.update(learner, batches, stop=True)
    result = step.UpdateResult(*vector.tolist())
    assert result.stop == 1 and 0 < result.words < result.tokens


@pytest.mark.parametrize("mode", ["attention", "layer"])
def test_recomputation_gives_the_same_update(word_data, mode):
    """With two micro-batches, dropout and several updates."""
    dropouts = [f"decoder.{name}=0.2" for name in ("dropout", "relu_dropout", "attention_dropout")]
    results = []
    for recompute in ("none", mode):
        learner = make_learner(word_data, *dropouts, f"training.recompute={recompute}")
        assert learner.model.decoder.layers[0].recompute == recompute
        torch.manual_seed(3)
        losses = [learn(learner, some_batches(word_data)[start : start + 2]) for start in (0, 2)]
        results.append((losses, snapshot(learner)))
    (expected, theirs), (found, ours) = results
    assert found == expected
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.fixture
def sparse_learner(word_data):
    return make_learner(word_data, *SPARSE)


def test_the_first_update_with_sparse_gradients_equals_the_dense_one(word_data, sparse_learner):
    """Including norm and clipping, with two micro-batches that share words."""
    dense = make_learner(word_data, *SPARSE, "input.sparse=false")
    batches = some_batches(word_data)[:2]
    ours, theirs = learn(sparse_learner, batches), learn(dense, batches)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours.norm > dense.clip_norm
    assert len(sparse_learner.optimizers) == len(dense.optimizers) + 1
    found, expected = snapshot(sparse_learner), snapshot(dense)
    for name in dense.model.state_dict():
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_sparse_updates_leave_other_words_unchanged(word_data, sparse_learner):
    batches = some_batches(word_data)
    learn(sparse_learner, batches)
    before = snapshot(sparse_learner)
    learn(sparse_learner, batches[:1])
    after, edges = snapshot(sparse_learner), sparse_learner.model.input.bands.edges
    inside = set(batches[0].words.flatten().tolist())
    for band, first in enumerate(edges[:-1]):
        for name in (name for name in before if f"input.embeddings.{band}" in name):
            if before[name].ndim == 2:
                moved = (before[name] != after[name]).any(1).nonzero().flatten() + first
                # One row stands for words of other bands.
                assert len(set(moved.tolist()) - inside) <= 1, name


def test_nesterov_rejects_sparse_gradients(word_data):
    with pytest.raises(ValueError, match="input.sparse=True: .*AdamW or Muon"):
        make_learner(word_data, "tie=none", "input.sparse=true")
