"""One update: what the gradients are divided by, and what is skipped without waiting."""

import pytest
import torch
from safetensors.torch import load_file
from training_runs import config_of, reports, run

from zipflm.config import AdamW, Blocks, Muon, Nesterov
from zipflm.data.batches import Batch, Batches
from zipflm.model.language_model import LanguageModel
from zipflm.presets import FACTORIZATIONS, preset
from zipflm.runs.building import untrained_model
from zipflm.training import optimizers, step
from zipflm.training.distributed import Process
from zipflm.training.setup import build_learner
from zipflm.training.tally import Tally

CPU = Process(0, 1, torch.device("cpu"))
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
    return step.Outcome(*step.update(learner, batches).tolist())


def snapshot(learner):
    tensors = {k: v.clone() for k, v in learner.model.state_dict().items()}
    return tensors | optimizers.dump_tensors(learner.optimizers, learner.model)


def test_accumulating_equals_one_large_batch(word_data):
    """Also when the micro-batches score different numbers of tokens."""
    batches = some_batches(word_data)
    batches[1].scored[2:] = False
    apart, together = make_learner(word_data), make_learner(word_data)
    first, second = learn(apart, batches), learn(together, [joined(batches)])
    assert first.tokens == second.tokens == sum(int(b.scored.sum()) for b in batches)
    assert first.nll == pytest.approx(second.nll, rel=1e-6)
    assert first.norm == pytest.approx(second.norm, rel=1e-5)
    for name, value in snapshot(apart).items():
        torch.testing.assert_close(value, snapshot(together)[name], rtol=1e-4, atol=1e-6)


def test_the_norm_is_that_of_the_mean_and_clipping_bounds_the_step(word_data):
    learner = make_learner(word_data, "training.clip_norm=0.1", "training.optimizer.momentum=0")
    before = snapshot(learner)
    model = untrained_model(config_of(word_data), word_data.vocabulary).eval()
    (batch,) = some_batches(word_data, 1)
    model.nll(batch.words, batch.targets, batch.scored).mean().backward()
    mean_norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))
    outcome = learn(learner, [batch])
    assert outcome.norm == pytest.approx(mean_norm.item(), rel=1e-5)
    assert outcome.norm > 0.1
    after = learner.model.state_dict()
    moved = torch.cat([(after[name] - before[name]).flatten() for name in after])
    assert torch.linalg.vector_norm(moved).item() == pytest.approx(0.1 * 0.1, rel=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_gradient_changes_nothing_at_all(word_data, optimizer, value):
    learner = make_learner(word_data)
    learner.optimizers = optimizers.build(optimizer, learner.model)
    batches = some_batches(word_data)
    assert not learn(learner, batches[:1]).bad
    before = snapshot(learner)
    hook = learner.model.decoder.layers[0].ffn_in.weight.register_hook(
        lambda grad: grad.index_fill(0, torch.tensor(0), value)
    )
    assert learn(learner, batches[1:2]).bad
    hook.remove()
    after = snapshot(learner)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not learn(learner, batches[2:3]).bad
    assert all(torch.isfinite(value).all() for value in snapshot(learner).values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_a_bad_first_update_changes_no_weight(word_data, optimizer):
    learner = make_learner(word_data)
    learner.optimizers = optimizers.build(optimizer, learner.model)
    before = {k: v.clone() for k, v in learner.model.state_dict().items()}
    hook = learner.model.decoder.layers[0].ffn_in.weight.register_hook(lambda g: g * float("nan"))
    assert learn(learner, some_batches(word_data, 1)).bad
    hook.remove()
    after = learner.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    learn(learner, some_batches(word_data, 1))
    assert all(torch.isfinite(value).all() for value in snapshot(learner).values())


def test_every_name_of_a_table_is_a_weights_name():
    with torch.device("meta"):
        models = [LanguageModel(preset("tiny", name)) for name in FACTORIZATIONS]
    parts = {part for m in models for name, _ in m.named_parameters() for part in name.split(".")}
    assert set(optimizers.TABLES) <= parts


def test_every_parameter_belongs_to_one_group(word_data):
    model = make_learner(word_data).model
    names = {param: name for name, param in model.named_parameters()}
    kinds = optimizers.parameter_kinds(model)
    assert sorted(names[p] for params in kinds.values() for p in params) == sorted(names.values())
    assert {names[p].split(".")[-2] for p in kinds["matrices"]} == {
        *("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
    }
    assert {names[p] for p in kinds["tables"]} == {
        *(f"input.embeddings.{band}" for band in range(3)),
        "output.clusters",
    }
    assert {names[p] for p in kinds["projections"]} == {
        f"input.projections.{band}" for band in range(3)
    }


def test_rates_follow_the_schedule_in_proportion(word_data):
    learner = make_learner(word_data)
    chosen = optimizers.build(Muon(matrix_lr=0.3, table_lr=0.2, lr=0.1), learner.model)
    optimizers.set_rates(chosen, 0.5)
    rates = sorted({group["lr"] for o in chosen for group in o.param_groups})
    assert rates == pytest.approx([0.05, 0.1, 0.15])


def test_loss_scale_halves_on_overflow_and_doubles_after_long():
    scale = step.LossScale(True, torch.device("cpu"))
    start = scale.value.item()
    scale.adapt(torch.tensor(True))
    assert scale.value.item() == start / 2
    for _ in range(2000):
        scale.adapt(torch.tensor(False))
    assert scale.value.item() == start


def test_the_loss_scale_does_not_change_the_update(word_data):
    plain, scaled = make_learner(word_data), make_learner(word_data)
    scaled.scale.value.fill_(2.0**10)
    batches = some_batches(word_data)
    assert learn(plain, batches).norm == pytest.approx(learn(scaled, batches).norm, rel=1e-6)
    for name, value in snapshot(plain).items():
        torch.testing.assert_close(value, snapshot(scaled)[name], rtol=1e-5, atol=1e-7)


def test_outcomes_arrive_one_update_later():
    delayed = step.Delayed()
    vectors = [torch.tensor([float(n), 1, 1, 0, 0], dtype=torch.float64) for n in range(3)]
    arrived = [[outcome.nll for outcome in delayed.put(vector)] for vector in vectors]
    assert arrived == [[], [0.0], [1.0]]
    assert [outcome.nll for outcome in delayed.flush()] == [2.0]
    assert delayed.flush() == []


def test_the_tally_counts_bad_updates_in_a_row():
    tally = Tally()
    good, bad = (
        step.Outcome(8.0, 4.0, 1.0, 0.0, 0.0),
        step.Outcome(float("nan"), 4.0, 1.0, 1.0, 0.0),
    )
    tally.see([good, bad, bad])
    assert (tally.bad_in_a_row, tally.skipped) == (2, 2)
    tally.see([good])
    assert (tally.bad_in_a_row, tally.skipped) == (0, 2)
    assert tally.summary()["loss"] == 2.0


def poison(monkeypatch, updates):
    """Make the loss of these updates (counted from 0) not a number."""
    true_update, calls = step.update, iter(range(10**6))

    def update(learner, batches, stop=False):
        if next(calls) in updates:
            weight = learner.model.decoder.layers[0].ffn_in.weight
            hook = weight.register_hook(lambda grad: grad * float("nan"))
            outcome = true_update(learner, batches, stop)
            hook.remove()
            return outcome
        return true_update(learner, batches, stop)

    monkeypatch.setattr(step, "update", update)


def test_a_run_counts_reports_and_survives_bad_updates(word_data, tmp_path, monkeypatch):
    poison(monkeypatch, {3, 4})
    assert run(word_data, tmp_path / "run", "training.max_updates=10")
    assert reports(tmp_path / "run")[-1].skipped == 2


def test_too_many_bad_updates_stop_the_run_with_the_batch_saved(word_data, tmp_path, monkeypatch):
    poison(monkeypatch, set(range(3, 1000)))
    with pytest.raises(ValueError, match="max_bad_updates=4"):
        run(word_data, tmp_path / "run", "training.max_updates=100", "training.max_bad_updates=4")
    saved = load_file(tmp_path / "run" / "bad-batch-0.safetensors")
    assert saved["0/words"].shape == (4, 16)
    assert set(saved) == {
        f"{i}/{name}" for i in range(2) for name in ("words", "targets", "scored")
    }
