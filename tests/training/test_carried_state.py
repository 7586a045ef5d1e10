import shutil

import pytest
import torch
from training_runs import assert_close, assert_same, config_of, in_processes, run, weights

from zipflm.data.batches import Batches
from zipflm.data.folder import DataFolder
from zipflm.distributed.processes import Process
from zipflm.runs.load import untrained_model
from zipflm.training import optimizers, step
from zipflm.training.step import build_learner

RECURRENT = {
    "lstm": ["decoder=LSTMDecoder", "decoder.hidden_dim=24", "decoder.dropout=0.1"],
    "qrnn": ["decoder=QRNNDecoder", "decoder.hidden_dim=24", "decoder.dropout=0.1"],
}
COMMON = [
    *("decoder.dim=16", "decoder.num_layers=2", "input.dim=16", "output.dim=16"),
    *("batches.break_mode=stream", "batches.block=4", "batches.tokens=16", "batches.eval_block=16"),
    *("training.tokens_per_update=32", "training.report_every=5"),
]
NO_DROPOUT = ["decoder.dropout=0", "output.tail_dropout=0"]


def base_of(name, *others):
    return [*RECURRENT[name], *COMMON, *others]


@pytest.mark.parametrize("name", RECURRENT)
def test_resumes_bit_for_bit(word_data, tmp_path, name):
    """With a checkpoint in the middle of an epoch, and a change of block length after it."""
    others = "training.max_updates=12", "training.checkpoint_every=5", "training.stages=0.8:2"
    base = base_of(name, *others)
    run(word_data, tmp_path / "whole", base=base, keep=0)
    assert weights(tmp_path / "whole", 5)["carried/0"].abs().sum() > 0
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    for update in (10, 12):
        shutil.rmtree(tmp_path / "part" / "checkpoints" / f"update-{update:08d}")
    run(word_data, tmp_path / "part", base=base, resume=True)
    assert_same(weights(tmp_path / "part"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("name", RECURRENT)
def test_updates_continue_the_state(word_data, name):
    """With learning rate 0 the losses equal those of one long pass over each row."""
    base = base_of(name, *NO_DROPOUT, "training.tokens_per_update=16")
    config = config_of(word_data, base=base)
    model = untrained_model(config, word_data.vocabulary)
    learner = build_learner(config, model, Process(0, 1, torch.device("cpu")))
    optimizers.set_rates(learner.optimizers, 0.0)
    tokens = word_data.tokens("train")
    plan = Batches(tokens, config.batches.blocks, max_tokens=16, shuffle=True)
    batches = list(plan.epoch(0))[:6]
    sums = [float(step.update(learner, [batch])[0]) for batch in batches]
    model.eval()
    words, targets = (torch.cat([getattr(b, n) for b in batches], 1) for n in ("words", "targets"))
    whole = model.nll(words, targets).view(4, 6, 4).sum((0, 2))
    torch.testing.assert_close(torch.tensor(sums), whole, rtol=1e-4, atol=0)


def test_a_change_of_tokens_per_update_resets_rows_and_state(word_data, tmp_path, monkeypatch):
    base = base_of("lstm", "training.checkpoint_every=0")
    run(word_data, tmp_path, "training.max_updates=3", base=base)
    config = config_of(word_data, "training.tokens_per_update=64", base=base)
    tokens, blocks = word_data.tokens("train"), config.batches.blocks
    plan = Batches(tokens, blocks, max_tokens=16, shuffle=True, streams=64 // blocks.block)
    firsts = [batch.words for batch in list(plan.epoch(0))[::4]]
    seen, update = [], step.update

    def record(learner, batches, stop=False):
        seen.append((batches[0].words, learner.carried.states[0][0].clone()))
        return update(learner, batches, stop)

    monkeypatch.setattr(step, "update", record)
    others = "training.max_updates=4", "training.tokens_per_update=64"
    run(word_data, tmp_path, *others, base=base, resume=True)
    words, state = seen[0]
    assert any(torch.equal(words, each) for each in firsts)
    assert not state.any()


def _run(path, out, base):
    run(DataFolder.open(path), out, base=base)


@pytest.mark.slow
@pytest.mark.multi_process
def test_two_processes_make_the_same_updates(word_data, tmp_path):
    base = base_of("lstm", *NO_DROPOUT, "training.max_updates=6")
    run(word_data, tmp_path / "alone", base=base)
    assert in_processes(2, _run, word_data.path, tmp_path / "together", base) == [0, 0]
    assert_close(weights(tmp_path / "together"), weights(tmp_path / "alone"), rtol=1e-4, atol=1e-5)


def test_a_bad_update_leaves_a_finite_state(word_data):
    config = config_of(word_data, base=base_of("qrnn"))
    model = untrained_model(config, word_data.vocabulary)
    carried = build_learner(config, model, Process(0, 1, torch.device("cpu"))).carried
    carried.keep(0, tuple(torch.full_like(each, torch.nan) for each in carried.states[0]))
    assert all(each.isfinite().all() for each in carried.states[0])
