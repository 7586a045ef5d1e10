"""Recorded decoding steps match steps with a growing cache."""

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


def filled(model, words, capacity):
    cache = model.new_cache(*words.shape)
    model(words, cache)
    ragged = model.new_cache(0, 0)
    ragged.join(cache, capacity)
    return ragged


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("config", list(models()), ids=lambda config: config.name)
@torch.inference_mode()
def test_recorded_steps_match_full_forward(config, device):
    model = a_model(config, device)
    words = torch.randint(config.vocab_size, (3, 12), device=device)
    cache = filled(model, words[:, :5], 16)
    step = RecordedStep(model, cache)
    expected = model(words)
    for t in range(5, 12):
        assert_close(step(words[:, t]), expected[:, t], 2e-5)
    assert cache.lengths == [12] * 3


@pytest.mark.parametrize("device", ["cpu", GPU])
@torch.inference_mode()
def test_rows_can_be_refilled_and_dropped(device):
    model = a_model(preset("tiny", "ADP-T"), device)
    words = torch.randint(4000, (5, 10), device=device)
    cache = filled(model, words[:, :8], 10)
    step = RecordedStep(model, cache)
    step(words[:, 8])
    other = model.new_cache(2, 3)
    model(words[:2, 5:8], other)
    cache.fill([0, 1], other)
    hidden = step(words[:, 9])
    assert_close(hidden[:2], model(words[:2, [5, 6, 7, 9]])[:, -1], 2e-5)
    assert_close(hidden[2:], model(words[2:])[:, -1], 2e-5)
    assert cache.empty_full(10) == [2, 3, 4]
    assert cache.drop({3, 4}) == [0, 1, 2] and step.fits
    expected = model(words[:2, [5, 6, 7, 9, 0]])[:, -1]
    assert_close(step(words[:3, 0])[:2], expected, 2e-5)
    cache.drop({2})
    assert not step.fits  # more than half would be unused
