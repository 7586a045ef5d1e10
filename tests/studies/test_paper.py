"""The paper's figures, compared with what it prints; rows found by model and by setting."""

import pytest
from studies import example_study as example

from zipflm.presets import from_name
from zipflm.studies.paper import MODELS, comparison_row, setting_row
from zipflm.studies.report import markdown

# Of Tables 3 and 4: valid and test perplexity, hours of training, millions of parameters.
PRINTED = {
    ("wikitext-103", "SM"): (23.87, 24.92, 57, "476.8"),
    ("wikitext-103", "BPE-T"): (22.46, 23.45, 30, "235.7"),
    ("wikitext-103", "CNN"): (20.86, 21.79, 70, "266.3"),
    ("wikitext-103", "ADP-T"): (19.79, 20.51, 30, "246.9"),
    ("billion-word", "BPE-T"): (27.44, 27.51, 34, "234.7"),
    ("billion-word", "ASM"): (26.97, 27.06, 62, "532.8"),
    ("billion-word", "ADP-T"): (25.51, 25.58, 43, "330.8"),
}


@pytest.mark.parametrize(("dataset", "model"), PRINTED)
def test_a_row_says_what_the_paper_prints(dataset: str, model: str) -> None:
    row = comparison_row(dataset, model)
    assert row is not None
    assert (row.valid, row.test, row.hours, row.params) == PRINTED[dataset, model]


def test_every_row_names_one_of_our_presets() -> None:
    for model in MODELS:
        assert model.matches(from_name(model.preset).num_params()), model


@pytest.mark.parametrize(
    ("label", "valid"),
    [
        ("ADP-T bands 5k/155k/100k", 20.06),
        ("ADP-T bands 20K/40K/200K", 19.79),
        ("ADP tail dropout 0.2", 21.23),
        ("ADP tail dropout 0", 24.74),
        ("ADP-T bands 1k/9k", None),
        ("ADP bands 5k/155k/100k", None),
        ("ADP-T tail dropout 0.2", None),
    ],
)
def test_ablations_are_found_by_their_setting(label: str, valid: float | None) -> None:
    study = example.study_of(example.member(label), dataset="wikitext-103")
    row = study.rows[0].paper
    assert (row.valid if row else None) == valid
    assert (f"| {valid} |" in markdown(study)) == (valid is not None)
    assert setting_row("billion-word", label) is None
