"""Sentences of the report."""

from dataclasses import replace

import numpy as np
from studies import example_study as example
from studies.example_study import study_of

from zipflm.studies.wording import findings, headline, lead


def member(label, shift, *, noise=0.3):
    """A model with shared losses plus `shift` and its own noise."""
    base = example.member("SM")
    random = np.random.default_rng(sum(map(ord, label)))
    nll = base.nll + 2 + shift + random.normal(0, noise, len(base.nll))
    score = replace(base.scores["test"], loss=float(nll.mean()), known_loss=float(nll.mean()))
    return replace(example.member(label), nll=nll, scores={"test": score})


def test_headline_names_best_next_and_last():
    study = study_of(member("SM", 1.0), member("ADP", 0.0), member("CNN", 0.5))
    best, middle, last = (f"{study.headline(row).mean:,.0f}" for row in study.ranked)
    assert headline(study) == (
        f"ADP is best, test perplexity {best}; CNN follows with {middle}, SM is last with {last}"
    )


def test_headline_without_significant_difference():
    study = study_of(member("SM", 1.0), member("ADP", 0.0, noise=3), member("ADP-T", 0.0, noise=3))
    assert set(study.tied_with_best) == {"ADP", "ADP-T"}
    text = headline(study)
    assert "are best (" in text and ", no significant difference); SM follows" in text
    study = study_of(*(member(label, 0.0, noise=4) for label in ("SM", "ADP", "CNN")))
    assert headline(study).startswith("No significant difference between ")


def test_headline_of_one_model_and_of_short_text():
    assert headline(study_of(member("SM", 0.0))).startswith("SM: test perplexity ")
    assert findings(study_of(example.member("SM"))) == []
    short = replace(example.text(), line_starts=np.array([0]))
    study = study_of(member("SM", 1.0), member("ADP", 0.0), on=short)
    assert headline(study).endswith("this text cannot show whether differences are significant")


def test_headline_of_an_unfinished_study():
    lost = [replace(example.member(label, problem="lost"), curve=()) for label in ("CNN", "ASM")]
    study = study_of(member("SM", 1.0), member("ADP", 0.0), *lost)
    assert headline(study) == "Unfinished: 2 of 4 models done; missing: CNN and ASM"
    seeds = study_of(member("SM", 1.0), member("ADP", 0.0), example.member("ADP", 2, problem="x"))
    assert headline(seeds).startswith("Unfinished: 1 of 2 models done")
    assert findings(seeds) == ["ADP has no result for some seeds: seed 2: x."]


def test_findings_explain_intervals():
    assert "cover only the variation between texts" in findings(example.study())[-1]
    assert "between 2 seeds" in findings(example.study(seeds=2))[-1]
    text = replace(example.text(), line_starts=np.arange(0, 3000, 600))
    study = study_of(example.member("SM"), example.member("ADP", rank=1), on=text)
    assert "With only 5 blocks of text, intervals are wide and imprecise." in findings(study)[-1]


def test_lead_mentions_seeds():
    seeds = [example.member("SM", seed) for seed in (1, 2, 3)]
    assert lead(study_of(*seeds)).startswith("1 model, 3 seeds each, ")
    assert "1 seed each" in lead(study_of(seeds[0]))
