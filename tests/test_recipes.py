"""Recipes, and fitting presets to a vocabulary."""

from dataclasses import replace

import pytest
import torch

from zipflm.config import Muon, WarmupDecay
from zipflm.model.language_model import LanguageModel
from zipflm.presets import DATASETS, FACTORIZATIONS, dataset_of, preset
from zipflm.presets.recipes import apply, resolve
from zipflm.settings import override


def test_every_preset_works_with_both_recipes():
    for dataset, metadata in DATASETS.items():
        for factorization in FACTORIZATIONS:
            config = preset(dataset, factorization)
            assert apply("paper", config, metadata) is config
            modern = apply("modern", config, metadata)
            assert isinstance(modern.training.optimizer, Muon)
            assert isinstance(modern.training.schedule, WarmupDecay)
            layers = modern.input, modern.output, modern.tie
            assert layers == (config.input, config.output, config.tie)


@pytest.mark.parametrize("dataset", ["wikitext-2", "demo", "small"])
def test_modern_keeps_presets_that_already_use_muon(dataset):
    config = preset(dataset)
    assert apply("modern", config, dataset_of(dataset)) is config


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_modern_parameter_count_matches_built_model(factorization):
    modern = apply("modern", preset("wikitext-103", factorization), dataset_of("wikitext-103"))
    with torch.device("meta"):
        model = LanguageModel(modern)
    assert sum(p.numel() for p in model.parameters()) == modern.num_params()


def test_rejects_unknown_recipes():
    with pytest.raises(ValueError, match="choose from paper, modern"):
        apply("ancient", preset("tiny"), dataset_of("tiny"))


def test_modern_compiles_models_for_gpus():
    for dataset, metadata in DATASETS.items():
        training = apply("modern", preset(dataset), metadata).training
        assert training.compile is not metadata.is_for_a_cpu
        assert training.dtype == ("float32" if metadata.is_for_a_cpu else "bfloat16")


def test_predicted_words_scale_cutoffs_however_they_are_written():
    def cutoffs(*sizes):
        overrides = [f"input.predicted_words={size}" for size in sizes]
        return resolve("tiny/CNN", "paper", overrides, 20_000).output.cutoffs

    assert cutoffs("8_000") == cutoffs("8000") == cutoffs("500", "8000") != cutoffs()


@pytest.mark.parametrize("recipe", ["paper", "modern"])
@pytest.mark.parametrize("dataset", ["wikitext-103", "wikitext-2"])
def test_cpu_defaults_to_float32(dataset, recipe):
    name, size = f"{dataset}/ADP-T", preset(dataset).vocab_size
    assert resolve(name, recipe, [], size).training.dtype != "float32"
    assert resolve(name, recipe, [], size, on_cpu=True).training.dtype == "float32"
    other = resolve(name, recipe, ["training.dtype=bfloat16"], size, on_cpu=True)
    assert other.training.dtype == "bfloat16"
    # Resumed runs keep their dtype.
    assert resolve(name, recipe, [], size, on_cpu=True, held=other) == other


@pytest.mark.parametrize("recipe", ["paper", "modern"])
@pytest.mark.parametrize("name", ["wikitext-103/ADP-T", "wikitext-103/ADP/fairseq", "tiny/ADP-T"])
def test_custom_name_changes_only_the_name(name, recipe):
    for mine in ("mine", "tiny/ADP-T", "wikitext-103/ADP-T"):
        named = resolve(name, recipe, [f"name={mine}"], 170_000)
        assert named.name == mine
        assert replace(named, name=name) == resolve(name, recipe, [], 170_000)


def test_model_without_cutoffs_fits_any_vocabulary():
    one_band = ["input.cutoffs=none", "output.cutoffs=none"]
    assert resolve("wikitext-103/ADP-T", "paper", one_band, 50).output_bands.sizes == (50,)


def test_tiny_bands_scale_with_the_vocabulary():
    assert resolve("tiny/ADP-T", "paper", [], 8000).output.cutoffs == (800, 3200)
    for size in (8, 100, 9000):
        config = resolve("tiny/ADP-T", "paper", [], size)
        assert config.vocab_size == size
        assert config.input_bands == config.output_bands
        assert config.input_bands.num_bands == 3


def test_overrides_replace_scaled_cutoffs():
    cutoffs = ["input.cutoffs=10,20", "output.cutoffs=10,20"]
    assert resolve("tiny/ADP-T", "paper", cutoffs, 100).input.cutoffs == (10, 20)


def test_paper_cutoffs_are_fixed():
    config = resolve("wikitext-103/ADP-T", "paper", [], 100_000)
    assert config.input.cutoffs == (20_000, 60_000)
    with pytest.raises(ValueError, match="input.cutoffs=.* exceeds vocab_size=50000"):
        resolve("wikitext-103/ADP-T", "paper", [], 50_000)
    fixed = ["input.cutoffs=10000,20000", "output.cutoffs=10000,20000"]
    assert resolve("wikitext-103/ADP-T", "paper", fixed, 50_000).vocab_size == 50_000


@pytest.mark.parametrize("name", ["tiny/ADP-T", "wikitext-103/ADP-T"])
def test_rejects_other_vocab_size_than_the_data(name):
    for size in ("5000", "5_000"):
        with pytest.raises(ValueError, match=f"vocab_size='{size}'.*has 70000 ids"):
            resolve(name, "paper", [f"vocab_size={size}"], 70_000)
    same = resolve(name, "paper", ["vocab_size=70_000"], 70_000)
    assert same == resolve(name, "paper", [], 70_000)


def test_parses_stages():
    changed = override(preset("tiny"), ["training.stages=0.3:16,0.8:32"])
    assert changed.training.stages == ((0.3, 16), (0.8, 32))
    assert override(changed, ["training.stages=none"]).training.stages == ()
