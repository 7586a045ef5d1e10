"""Each finding has the paper's number and ours, and agrees only where the interval says so."""

import math
from dataclasses import replace

import pytest
from analysis import example_study as example

from zipflm.analysis.building import build
from zipflm.analysis.estimates import Interval
from zipflm.analysis.paper_findings import (
    PaperFinding,
    count_verdicts,
    paper_findings,
    percent,
    percent_of,
)
from zipflm.analysis.study import Difference, Study


def with_difference(study: Study, label: str, other: str, low: float, high: float) -> Study:
    nats = Interval(estimate=(low + high) / 2, low=low, high=high)
    pair = Difference(label=label, other=other, nats=nats, has_all_seeds=False)
    return replace(study, differences=(pair,))


def finding(study: Study, models: str) -> PaperFinding:
    (found,) = (f for f in paper_findings(study) if f.models == models and "rare" not in f.claim)
    return found


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.2, -0.1, "agrees"), (0.1, 0.2, "disagrees"), (-0.1, 0.2, "cannot be told")],
)
def test_verdicts_follow_the_interval(low: float, high: float, verdict: str) -> None:
    study = with_difference(example.study(), "ADP", "ASM", low, high)
    found = finding(study, "ADP against ASM")
    assert found.verdict == verdict
    assert found.paper == "21.74 against 22.18, \u22122.0\u00a0%"
    assert found.ours == percent_of(study.differences[0].nats)


def test_the_direction_in_which_a_pair_is_stored_does_not_matter() -> None:
    study = with_difference(example.study(), "ASM", "ADP", 0.1, 0.2)
    assert finding(study, "ADP against ASM").verdict == "agrees"


def test_all_of_the_papers_claims_hold_in_its_own_numbers() -> None:
    """On WikiText-103 every claim is a lower number of the first model."""
    found = paper_findings(example.study())
    assert len(found) == 14 and all("\u2212" in f.paper.split(", ")[1] for f in found)
    assert {f.claim.split(" ")[0] for f in found} >= {"On", "After", "Tying"}


def test_a_study_of_billion_word_is_held_against_the_papers_billion_word() -> None:
    models = {f.models: f.paper for f in paper_findings(example.study(dataset="billion-word"))}
    assert "ADP against SM" not in models  # which the paper did not train there
    assert models["BPE-T against BPE"].endswith("+1.4\u00a0%")


def test_bins_are_compared_in_nats_against_the_reference() -> None:
    study = example.study()
    (rare,) = (
        f
        for f in paper_findings(study)
        if f.claim.startswith("On rare") and f.models == "ADP-T against SM"
    )
    assert rare.paper == "8.29 against 10.65 nats, \u22122.36"
    b = next(b for b in study.word_bins if b.name == "1-10")
    low, high = b.difference["SM"]
    assert f"({-high:+.2f} to {-low:+.2f})".replace("-", "\u2212") in rare.ours


def test_there_are_none_where_the_paper_has_no_such_models() -> None:
    members = [example.member(f"ADP-T bands {i}k/9k", rank=i) for i in range(3)]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    assert paper_findings(study) == []


def test_differences_in_nats_are_changes_of_the_perplexity() -> None:
    assert percent(math.log(1.1)) == "+10.0\u00a0%"
    assert percent(math.log(0.9)) == "\u221210.0\u00a0%"
    assert count_verdicts([]) == "0 agree, 0 disagree, 0 cannot be told"
