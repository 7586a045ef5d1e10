from dataclasses import replace

import pytest
import torch
from training_runs import SMALL, assert_same, config_of

from zipflm.config import Config
from zipflm.data.encoding import spellings
from zipflm.data.vocabulary import Vocabulary
from zipflm.runs.load import model_with, untrained_model


@pytest.fixture(scope="module")
def config(word_data) -> Config:
    return config_of(word_data)


def with_seed(config, seed):
    return replace(config, training=replace(config.training, seed=seed))


def test_weights_depend_only_on_the_seed(config, word_data):
    first = untrained_model(config, word_data.vocabulary).state_dict()
    torch.randn(17)
    assert_same(untrained_model(config, word_data.vocabulary).state_dict(), first)
    other = untrained_model(with_seed(config, 2), word_data.vocabulary).state_dict()
    assert any(not torch.equal(other[name], first[name]) for name in first)


def test_builds_a_model_with_given_weights(config, word_data):
    trained = untrained_model(config, word_data.vocabulary).eval()
    weights = trained.state_dict()
    before = torch.get_rng_state()
    built = model_with(weights, config, word_data.vocabulary)
    assert not built.training and torch.equal(torch.get_rng_state(), before)
    assert_same(built.state_dict(), weights)
    words = torch.tensor([[2, 9, 11]])
    assert torch.equal(built.nll(words, words), trained.nll(words, words))


def test_character_models_use_the_spelling_of_words(word_data):
    base = [line for line in SMALL if not line.startswith("input.")]
    config = config_of(word_data, "input.max_bytes=8", preset="tiny/CNN", base=base)
    model = untrained_model(config, word_data.vocabulary)
    table = torch.from_numpy(spellings(word_data.vocabulary, 8))
    assert torch.equal(model.input.spellings_VC.long(), table.long())
    again = model_with(model.state_dict(), config, word_data.vocabulary)
    assert again.input.spellings_VC.device.type == "cpu"
    # With another vocabulary the same ids have other spellings.
    words = [*word_data.vocabulary.words[:4], *reversed(word_data.vocabulary.words[4:])]
    turned = model_with(
        model.state_dict(), config, Vocabulary(words, word_data.vocabulary.counts.tolist())
    )
    ids = torch.tensor([[4, 5, 6]])
    assert torch.equal(model.eval()(ids), again(ids)) and not torch.equal(again(ids), turned(ids))
