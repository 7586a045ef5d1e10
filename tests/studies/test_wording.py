"""The sentences are true of the study, and claim nothing that its intervals leave open."""

from dataclasses import replace

import numpy as np
import pytest
from studies import example_study as example
from studies.example_study import study_of

from zipflm.presets import preset
from zipflm.studies.report import html, markdown
from zipflm.studies.study import BUSY, Member
from zipflm.studies.tables import to_csv
from zipflm.studies.wording import findings, headline, lead, paper_caption


def member(label: str, shift: float, *, noise: float = 0.3) -> Member:
    """A model whose losses are those of all others plus `shift`, and noise of its own."""
    base = example.member("SM")
    assert base.nll is not None
    random = np.random.default_rng(sum(map(ord, label)))
    nll = base.nll + 2 + shift + random.normal(0, noise, len(base.nll))
    score = replace(base.scores["test"], loss=float(nll.mean()), known_loss=float(nll.mean()))
    return replace(example.member(label), nll=nll, scores={"test": score})


def test_the_best_alone_then_the_next_then_the_last() -> None:
    study = study_of(member("SM", 1.0), member("ADP", 0.0), member("CNN", 0.5))
    best, middle, last = (f"{study.headline(row).mean:,.0f}" for row in study.ranked)
    assert headline(study) == (
        f"ADP is best, test perplexity {best}; CNN follows with {middle}, SM is last with {last}"
    )


def test_models_that_cannot_be_told_apart_share_the_first_place() -> None:
    study = study_of(member("SM", 1.0), member("ADP", 0.0, noise=3), member("ADP-T", 0.0, noise=3))
    assert set(study.level_with_best) == {"ADP", "ADP-T"}
    text = headline(study)
    assert " and " in text and "are best" in text and "not distinguishable; SM follows" in text
    study = study_of(*(member(label, 0.0, noise=4) for label in ("SM", "ADP", "CNN")))
    assert headline(study).startswith("The 3 models cannot be told apart: test perplexity ")


def test_sub_words_that_trail_are_named_together() -> None:
    members = [member("ADP", 0.0), member("SM", 0.3), member("BPE", 1.0), member("BPE-T", 1.4)]
    assert "SM follows with" in headline(study_of(*members))
    assert "sub-words trail (" in headline(study_of(*members))
    assert "BPE is last with" in headline(study_of(*members[:3]))


def test_one_model_and_a_text_too_short() -> None:
    assert headline(study_of(member("SM", 0.0))).startswith("SM: test perplexity ")
    assert findings(study_of(example.member("SM"))) == []
    short = replace(example.text(), line_starts=np.array([0]))
    study = study_of(member("SM", 1.0), member("ADP", 0.0), on=short)
    assert headline(study).endswith("too few sources to say more")


def test_an_unfinished_study_has_no_verdict_and_names_the_missing_models() -> None:
    lost = [replace(example.member(label, problem="lost"), curve=()) for label in ("CNN", "ASM")]
    study = study_of(member("SM", 1.0), member("ADP", 0.0), *lost)
    assert headline(study) == "Unfinished: 2 of 4 models; missing: CNN and ASM"
    seeds = study_of(member("SM", 1.0), member("ADP", 0.0), example.member("ADP", 2, problem="x"))
    assert headline(seeds).startswith("Unfinished: 1 of 2 models")
    assert findings(seeds) == ["ADP is without some of its seeds. Seed 2: x."]


def test_better_is_said_only_where_the_interval_excludes_zero() -> None:
    study = study_of(example.member("SM"), example.member("ADP", rank=9))
    assert study.is_better("ADP", "SM")
    assert " and is better than SM, the next: \u2212" in findings(study)[0]
    alike = study_of(example.member("SM"), example.member("ADP", seed=2))
    assert "cannot be told from it" in findings(alike)[0]
    assert not any("better" in sentence for sentence in findings(alike))


def test_bins_are_quoted_with_their_intervals() -> None:
    _, rare, previous, _ = findings(example.study())
    assert rare.startswith("On words that occur 1-10 times") and " to " in rare
    assert previous.startswith("After a word that occurs 1-10 times")


def test_what_the_intervals_cover_depends_on_the_seeds() -> None:
    assert "every model was trained with one seed" in findings(example.study())[-1]
    assert "trained with one seed" in paper_caption(example.study())
    several = example.study(seeds=3)
    assert "with 3 seeds a model, the randomness of training" in findings(several)[-1]
    assert "trained with one seed" not in paper_caption(several)
    mixed = study_of(example.member("SM", 1), example.member("SM", 2), example.member("ADP"))
    assert "some models were trained with one seed" in findings(mixed)[-1]


def test_few_blocks_are_told() -> None:
    text = replace(example.text(), line_starts=np.arange(0, 3000, 600))
    study = study_of(example.member("SM"), example.member("ADP", rank=1), on=text)
    assert "With only 5 blocks of text they are wide and rough." in findings(study)[-1]


@pytest.mark.parametrize(("cpu_seconds", "busy"), [(9.0, False), (7.0, True), (None, False)])
def test_a_time_from_a_busy_machine_is_marked_and_in_no_headline(
    cpu_seconds: float | None, busy: bool
) -> None:
    first = replace(example.member("SM"), cpu_seconds=cpu_seconds)  # and 10 seconds by the clock
    study = study_of(first, replace(example.member("ADP", rank=1), cpu_seconds=10.9))
    assert (f"SM {BUSY}." in findings(study)) == busy
    page, text = html(study), markdown(study)
    for place in (page, text):
        assert ("10.0 s (busy)" in place) == ("12,345 (busy)" in place) == busy
        assert "11.0 s (busy)" not in place
    assert ("shortest training" in page) != busy
    assert "training_CPU_time" in to_csv(study)


def test_seeds_and_a_recipe_unlike_the_papers_are_told_in_words() -> None:
    members = [
        replace(example.member("SM", seed), config=preset("wikitext-2", "SM")) for seed in (1, 2, 3)
    ]
    text = lead(study_of(*members))
    assert text.startswith("1 model, 3 seeds each, ")
    recipe = "rotary positions, normalised queries and keys, squared ReLU, RMS norm, "
    assert recipe in text and "no biases and Muon." in text
    plain = lead(study_of(replace(members[0], config=preset("wikitext-103", "SM"))))
    assert "Unlike" not in plain and "1 seed each" in plain
