"""Findings of the paper compared with a study."""

from dataclasses import replace
from itertools import combinations

import pytest
from studies import example_study as example

from zipflm.studies.findings import paper_findings, percent_of
from zipflm.studies.statistics import Interval
from zipflm.studies.wording import paper_caption


def with_difference(study, label, other, low, high):
    nats = Interval(estimate=(low + high) / 2, low=low, high=high)
    return replace(study, differences={(label, other): nats})


def finding(study, models, measure="perplexity"):
    (found,) = (f for f in paper_findings(study) if (f.models, f.measure) == (models, measure))
    return found


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.2, -0.1, "agrees"), (0.1, 0.2, "disagrees"), (-0.1, 0.2, "not significant")],
)
def test_verdicts_follow_the_interval(low, high, verdict):
    study = with_difference(example.study(), "ADP", "ASM", low, high)
    found = finding(study, "ADP against ASM")
    assert found.verdict == verdict
    assert found.paper == "21.74 against 22.18, \u22122.0%"
    assert found.ours == percent_of(study.differences["ADP", "ASM"])


def test_every_pair_is_compared_by_every_measure():
    study = example.study()
    found = paper_findings(study)
    for measure in ("perplexity", "loss on rare words", "loss after rare words"):
        pairs = [f for f in found if f.measure == measure]
        models = {frozenset((f.model, f.other)) for f in pairs}
        assert models == {frozenset(pair) for pair in combinations(example.LABELS, 2)}
        agree = sum(f.verdict == "agrees" for f in pairs)
        assert f"{measure}: {agree} of 28 pairs agree with the paper, " in paper_caption(study)
    assert all("\u2212" in f.paper for f in found)


def test_billion_word_studies_are_compared_with_billion_word():
    study = example.study(dataset="billion-word")
    # The paper has no SM there, and its untied subword model is better.
    assert all("SM" not in (f.model, f.other) for f in paper_findings(study))
    assert finding(study, "BPE against BPE-T").paper.endswith("\u22121.4%")


def test_rare_words_are_compared_in_nats():
    study = example.study()
    rare = finding(study, "ADP-T against SM", "loss on rare words")
    assert rare.paper == "8.29 against 10.65 nats, \u22122.36"
    b = next(b for b in study.word_bins if b.name == "1-10")
    low, high = b.difference["SM"]
    assert f"({-high:+.2f} to {-low:+.2f})".replace("-", "\u2212") in rare.ours
    tied = finding(study, "SM-T against SM", "loss on rare words")
    difference = (b.loss["SM-T"] or 0) - (b.loss["SM"] or 0)
    assert tied.ours.startswith(f"{difference:+.2f} nats (".replace("-", "\u2212"))
