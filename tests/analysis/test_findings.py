"""The sentences are true of the study, and claim nothing that its intervals leave open."""

from dataclasses import replace

import numpy as np
import pytest
from analysis import example_study as example

from zipflm.analysis.building import build
from zipflm.analysis.findings import findings
from zipflm.analysis.page import render
from zipflm.analysis.report import markdown
from zipflm.analysis.study import BUSY, NOT_COMPILED, Member, Study
from zipflm.analysis.tables import to_csv


def study_of(*members: Member, dataset: str = "tiny") -> Study:
    return build(members, example.text(), title="t", dataset=dataset, facts={})


def test_better_is_said_only_where_the_interval_excludes_zero() -> None:
    study = study_of(example.member("SM"), example.member("ADP", rank=9))
    overall = findings(study)[0]
    assert study.is_better("ADP", "SM") and " and is better than SM, the next: \u2212" in overall
    alike = study_of(example.member("SM"), example.member("ADP", seed=2))
    assert len(alike.level_with_best) == 2
    assert "cannot be told from it" in findings(alike)[0]
    assert not any("better" in sentence for sentence in findings(alike))


def test_bins_are_quoted_with_their_intervals() -> None:
    _, rare, previous, _ = findings(example.study())
    assert rare.startswith("On words that occur 1-10 times") and " to " in rare
    assert previous.startswith("After a word that occurs 1-10 times")


def test_what_the_intervals_cover_depends_on_the_seeds() -> None:
    assert "every model was trained with one seed" in findings(example.study())[-1]
    last = findings(example.study(seeds=3))[-1]
    assert "with 3 seeds a model, the randomness of training" in last
    mixed = study_of(example.member("SM", 1), example.member("SM", 2), example.member("ADP"))
    assert "some models were trained with one seed" in findings(mixed)[-1]


def test_few_blocks_are_told() -> None:
    text = replace(example.text(), line_starts=np.arange(0, 3000, 600))
    members = [example.member("SM"), example.member("ADP", rank=1)]
    study = build(members, text, title="t", dataset="tiny", facts={})
    assert "With only 5 blocks of text they are wide and rough." in findings(study)[-1]


def test_a_row_without_one_of_its_seeds_says_so() -> None:
    lost = replace(example.member("SM", 2, problem="loss is nan"), curve=())
    found = findings(study_of(example.member("SM", 1), lost))
    assert found == ["SM is without some of its seeds. Seed 2: loss is nan."]


def test_seeds_that_failed_for_the_same_reason_give_it_once() -> None:
    members = [example.member("SM", seed, problem="loss is nan") for seed in (1, 2)]
    assert study_of(*members).rows[0].problem == "loss is nan"


def test_one_model_has_nothing_to_be_compared_with() -> None:
    assert findings(study_of(example.member("SM"))) == []


def test_a_row_that_ran_uncompiled_says_so_and_the_others_do_not() -> None:
    members = [
        replace(example.member(label, rank=rank), compiled=compiled)
        for rank, (label, compiled) in enumerate((("SM", False), ("CNN", True), ("ADP", None)))
    ]
    said = [sentence for sentence in findings(study_of(*members)) if NOT_COMPILED in sentence]
    assert said == [f"SM {NOT_COMPILED}."]


@pytest.mark.parametrize(("cpu_seconds", "busy"), [(9.0, False), (7.0, True), (None, False)])
def test_a_time_from_a_busy_machine_is_marked_and_in_no_headline(
    cpu_seconds: float | None, busy: bool
) -> None:
    first = replace(example.member("SM"), cpu_seconds=cpu_seconds)  # and 10 seconds by the clock
    study = study_of(first, replace(example.member("ADP", rank=1), cpu_seconds=10.9))
    assert (f"SM {BUSY}." in findings(study)) == busy
    page, text = render(study), markdown(study)
    for place in (page, text):
        assert ("10.0 s (busy)" in place) == ("12,345 (busy)" in place) == busy
        assert "11.0 s (busy)" not in place
    assert ("shortest training" in page) != busy
    assert "training_CPU_time" in to_csv(study)
