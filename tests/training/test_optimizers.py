"""Parameter groups and saved state of the optimizers."""

import pytest
import torch
from safetensors.torch import save_file
from training_runs import assert_same, config_of

from zipflm.config import AdamW, CharacterInput, Muon, Nesterov
from zipflm.model.inputs import sparse_tables
from zipflm.model.language_model import LanguageModel
from zipflm.presets import FACTORIZATIONS, preset
from zipflm.runs.sharded import StoredTensors
from zipflm.training import optimizers
from zipflm.training.optimizers import NesterovMomentum, StackedMuon

CONFIGS = [Nesterov(weight_decay=0.1), AdamW(weight_decay=0.1), Muon(matrix_weight_decay=0.1)]
TYPES = {
    "Nesterov": [NesterovMomentum],
    "AdamW": [torch.optim.AdamW],
    "Muon": [StackedMuon, torch.optim.AdamW],
}


def name_of(config):
    return type(config).__name__


def tiny(factorization="ADP-T"):
    config = preset("tiny", factorization)
    spellings = torch.zeros(config.vocab_size, 50, dtype=torch.int16)
    return LanguageModel(config, spellings if isinstance(config.input, CharacterInput) else None)


def names_of(model):
    return {param: name for name, param in model.named_parameters()}


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_every_weight_belongs_to_one_optimizer(factorization, config):
    model = tiny(factorization)
    built = optimizers.build(config, model)
    assert [type(optimizer) for optimizer in built] == TYPES[name_of(config)]
    params = [p for o in built for group in o.param_groups for p in group["params"]]
    assert len(params) == len(set(params))
    assert set(params) == set(model.parameters())


def test_muon_updates_only_matrices_of_layers():
    model = tiny()
    names, (muon, adamw) = names_of(model), optimizers.build(Muon(), model)
    matrices = {names[p] for group in muon.param_groups for p in group["params"]}
    of_layers = {name for name in names.values() if name.startswith("decoder.layers.")}
    assert matrices == {
        name for name in of_layers if name.endswith(".weight") and "norm" not in name
    }
    others = {names[p] for group in adamw.param_groups for p in group["params"]}
    assert {name for name in others if name.startswith("decoder.layers.0.ffn")} == {
        *("decoder.layers.0.ffn_norm.weight", "decoder.layers.0.ffn_norm.bias"),
        *("decoder.layers.0.ffn_in.bias", "decoder.layers.0.ffn_out.bias"),
    }


def test_tables_have_their_own_rate_and_vectors_no_decay():
    model = tiny()
    chosen = Muon(lr=0.1, table_lr=0.2, weight_decay=0.3)
    names, adamw = names_of(model), optimizers.build(chosen, model)[-1]
    found = {
        names[p]: (group["base_lr"], group["weight_decay"])
        for group in adamw.param_groups
        for p in group["params"]
    }
    assert found["input.embeddings.2"] == found["output.clusters"] == (0.2, 0.3)
    assert found["input.projections.2"] == (0.1, 0.3)
    assert found["decoder.layers.0.ffn_in.bias"] == (0.1, 0.0)
    assert found["decoder.layers.0.ffn_norm.weight"] == (0.1, 0.0)


def test_rates_follow_the_schedule_in_proportion():
    chosen = optimizers.build(Muon(matrix_lr=0.3, table_lr=0.2, lr=0.1), tiny())
    for factor in (0.5, 0.25):  # relative to the config, not to the previous rate
        optimizers.set_rates(chosen, factor)
    rates = sorted({group["lr"] for o in chosen for group in o.param_groups})
    assert rates == pytest.approx([0.025, 0.05, 0.075])


def learn(model, built, updates):
    for update in updates:
        torch.manual_seed(update)
        sparse = set(sparse_tables(model))
        for param in model.parameters():
            grad = torch.randn_like(param)
            param.grad = grad.to_sparse(1) if param in sparse else grad
        optimizers.set_rates(built, 0.1 / (1 + update))
        optimizers.step(built, torch.tensor(1.0), torch.tensor(False))


def stored(tensors, folder):
    save_file(tensors, folder / "optimizer.safetensors")
    return StoredTensors([folder / "optimizer.safetensors"])


SPARSE = ["tie=none", "input.sparse=true"]


@pytest.mark.parametrize(
    ("config", "overrides"), [*((config, []) for config in CONFIGS), (AdamW(), SPARSE)]
)
def test_restored_state_continues_bit_for_bit(word_data, tmp_path, config, overrides):
    model, resumed = (LanguageModel(config_of(word_data, *overrides)) for _ in range(2))
    built, again = optimizers.build(config, model), optimizers.build(config, resumed)
    learn(model, built, range(3))
    saved = optimizers.state_tensors(built, model)
    assert {name.rpartition("/")[0] for name in saved} == set(names_of(model).values())
    resumed.load_state_dict(model.state_dict())
    optimizers.load_tensors(again, resumed, stored(saved, tmp_path))
    learn(model, built, range(3, 6))
    learn(resumed, again, range(3, 6))
    assert_same(dict(resumed.state_dict()), dict(model.state_dict()))
    assert_same(optimizers.state_tensors(again, resumed), optimizers.state_tensors(built, model))
