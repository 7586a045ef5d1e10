"""Every field of a config is shown with its help, in a form that overrides take."""

from zipflm.config import AdamW
from zipflm.field_help import as_override, describe_type, field_docs, fields_of
from zipflm.presets import DATASETS, FACTORIZATIONS, dataset_of, preset
from zipflm.presets.recipes import RECIPES, apply
from zipflm.settings import override

CONFIGS = [
    apply(recipe, preset(dataset, factorization), dataset_of(dataset))
    for dataset in DATASETS
    for factorization in FACTORIZATIONS
    for recipe in RECIPES
]


def test_the_shown_fields_of_a_config_make_it_from_any_other():
    for config in CONFIGS:
        shown = [field.assignment for field in fields_of(config)]
        assert override(preset("demo", "CNN"), shown) == config


def test_every_field_of_every_preset_has_help():
    found = {field.key: field for config in CONFIGS for field in fields_of(config)}
    assert len(found) > 50
    for field in found.values():
        assert field.help and "\n" not in field.help and field.type, field.key


def test_help_is_inherited_and_may_be_replaced():
    docs = field_docs(type(preset("demo", "ADP-T").training.optimizer))
    assert docs["table_lr"] == field_docs(AdamW)["table_lr"]
    assert "except tables and the matrices" in docs["lr"] != field_docs(AdamW)["lr"]


def test_describes_types_and_values():
    assert describe_type(int | None) == "int or none"
    pairs = describe_type(tuple[tuple[float, int], ...])
    assert pairs == "comma-separated groups a:b of numbers"
    assert as_override(True) == "true" and as_override(()) == "none"
