"""Every field of a config is shown with what it is, in a form that overrides take."""

import pytest

from zipflm.field_help import as_override, field_docs, fields_of, in_words
from zipflm.overrides import override
from zipflm.presets import DATASETS, FACTORIZATIONS, dataset_of, preset
from zipflm.recipes import RECIPES, apply

CONFIGS = {
    f"{dataset}/{factorization} {recipe}": apply(
        recipe, preset(dataset, factorization), dataset_of(dataset)
    )
    for dataset in DATASETS
    for factorization in FACTORIZATIONS
    for recipe in RECIPES
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_is_shown_of_a_config_makes_it_of_any_other(config):
    shown = [field.assignment for field in fields_of(config)]
    for other in (preset("tiny", "SM"), preset("demo", "CNN"), preset("billion-word", "ADP-T")):
        assert override(other, shown) == config


def test_every_field_of_every_preset_has_its_help():
    found = {field.key: field for config in CONFIGS.values() for field in fields_of(config)}
    assert len(found) > 50
    for field in found.values():
        assert field.help and "\n" not in field.help and field.type, field.key


def test_help_of_a_base_is_inherited_and_may_be_replaced():
    class Base:
        pass

    assert field_docs(Base) == {}
    docs = field_docs(type(preset("demo", "ADP-T").training.optimizer))
    assert docs["lr"].startswith("Of everything") and docs["momentum"] == "Of Muon."


def test_types_are_said_as_somebody_needs_to_know_them():
    assert in_words(int | None) == "a whole number or none"
    assert in_words(tuple[tuple[float, int], ...]) == "a:b with commas"
    assert as_override(True) == "true" and as_override(()) == "none"
