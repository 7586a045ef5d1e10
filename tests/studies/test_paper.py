"""The paper's figures, compared with what it prints; rows found by model and by setting."""

import pytest
from studies import example_study as example

from zipflm.presets import from_name
from zipflm.studies.paper import BANDS, CONTEXT, GPUS, MODELS, comparison_row, setting_row
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


def test_the_best_results_are_those_of_its_first_tables() -> None:
    best = {
        m.preset: (m.params, m.test, m.hours)
        for m in MODELS
        if m.table[:7] in ("Table 1", "Table 2")
    }
    assert best["billion-word/ADP-T/very-large"] == ("1026", 23.02, 145)
    assert best["wikitext-103/ADP-T/block-3072-context-2560"] == ("247", 18.70, 67)
    assert len(best) == 5


def test_models_that_the_paper_compares_on_one_text_only_have_no_row_on_the_other() -> None:
    assert comparison_row("billion-word", "SM") is None
    assert comparison_row("wikitext-2", "ADP-T") is None
    assert GPUS == {"wikitext-103": 8, "billion-word": 32}


def test_every_row_names_one_of_our_presets() -> None:
    for model in MODELS:
        assert model.matches(from_name(model.preset).num_params()), model


def test_contexts_and_bands_are_those_of_its_tables() -> None:
    assert CONTEXT[512, 0] == (19.79, 20.51) and CONTEXT[3072, 2560] == (17.97, 18.70)
    assert len(CONTEXT) == 6
    assert BANDS[20, 140, 100] == 20.26 and BANDS[20, 40, 60, 140] == 20.53 and len(BANDS) == 6
    assert all(sum(sizes) == 260 for sizes in BANDS)


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
