"""A step at fixed shapes computes what one with a growing cache does; a GPU records it."""

from dataclasses import replace

import pytest
import torch
from numerics import assert_close

from zipflm import LanguageModel, preset
from zipflm.config import CharacterInput
from zipflm.model.recorded_step import RecordedStep
from zipflm.presets import FACTORIZATIONS
from zipflm.presets.recipes import resolve

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def models():
    for factorization in FACTORIZATIONS:
        yield preset("tiny", factorization)
    yield resolve("tiny/ADP-T", "modern", [], 4000)


def a_model(config, device="cpu"):
    config = replace(config, decoder=replace(config.decoder, num_layers=2))
    spellings = torch.randint(257, (config.vocab_size, 50), dtype=torch.int16)
    needs = isinstance(config.input, CharacterInput)
    return LanguageModel(config, spellings if needs else None).to(device).eval()


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("config", list(models()), ids=lambda config: config.name)
@torch.inference_mode()
def test_recorded_steps_equal_the_whole_pass(config, device):
    model = a_model(config, device)
    words = torch.randint(config.vocab_size, (3, 12), device=device)
    cache = model.new_cache(3, 16)
    # Memory that was never written may hold anything.
    cache.keys_LBHCK.fill_(torch.nan)
    cache.values_LBHCK.fill_(torch.inf)
    model(words[:, :5], cache)
    step = RecordedStep(model, cache)
    expected = model(words)
    for place in range(5, 12):
        assert_close(step(words[:, place]), expected[:, place], 2e-5)
    assert cache.length == 12


@pytest.mark.parametrize("device", ["cpu", GPU])
@torch.inference_mode()
def test_a_cache_that_was_filled_anew_is_gone_on_with(device):
    model = a_model(preset("tiny", "ADP-T"), device)
    words = torch.randint(4000, (2, 10), device=device)
    cache = model.new_cache(2, 10)
    model(words[:, :8], cache)
    step = RecordedStep(model, cache)
    step(words[:, 8])
    cache.truncate(0)
    model(words[:, 5:8], cache)
    assert_close(step(words[:, 8]), model(words[:, 5:9])[:, -1], 2e-5)
