"""The first sentence of a report says the result, and no more than the intervals allow."""

from dataclasses import replace

import numpy as np
from analysis import example_study as example

from zipflm.analysis.building import build
from zipflm.analysis.headline import headline, join
from zipflm.analysis.study import Member, Study


def member(label: str, shift: float, *, noise: float = 0.3) -> Member:
    """A model whose losses are those of all others plus `shift`, and noise of its own."""
    base = example.member("SM")
    assert base.nll is not None
    random = np.random.default_rng(abs(hash_of(label)))
    nll = base.nll + 2 + shift + random.normal(0, noise, len(base.nll))
    score = replace(base.scores["test"], loss=float(nll.mean()), known_loss=float(nll.mean()))
    own = example.member(label)
    return replace(own, nll=nll, scores={"test": score})


def hash_of(label: str) -> int:
    return sum(map(ord, label))


def study_of(*members: Member) -> Study:
    return build(members, example.text(), title="t", dataset="tiny", facts={})


def test_the_best_alone_then_the_next_then_the_last() -> None:
    study = study_of(member("SM", 1.0), member("ADP", 0.0), member("CNN", 0.5))
    text = headline(study)
    best, middle, last = (f"{study.headline(row).mean:,.0f}" for row in study.ranked)
    assert text == (
        f"ADP is best, test perplexity {best}; CNN follows with {middle}, SM is last with {last}"
    )


def test_models_that_cannot_be_told_apart_share_the_first_place() -> None:
    study = study_of(member("SM", 1.0), member("ADP", 0.0, noise=3), member("ADP-T", 0.0, noise=3))
    assert set(study.level_with_best) == {"ADP", "ADP-T"}
    text = headline(study)
    assert " and " in text and "are best" in text and "not distinguishable; SM follows" in text


def test_sub_words_that_trail_are_named_together() -> None:
    members = [member("ADP", 0.0), member("SM", 0.3), member("BPE", 1.0), member("BPE-T", 1.4)]
    assert "SM follows with" in headline(study_of(*members))
    assert "sub-words trail (" in headline(study_of(*members))
    two = study_of(members[0], members[1], members[2])
    assert "BPE is last with" in headline(two)


def test_if_none_can_be_told_from_another_that_is_the_result() -> None:
    study = study_of(*(member(label, 0.0, noise=4) for label in ("SM", "ADP", "CNN")))
    assert headline(study).startswith("The 3 models cannot be told apart: test perplexity ")


def test_one_model_none_and_a_text_too_short() -> None:
    assert headline(study_of(member("SM", 0.0))).startswith("SM: test perplexity ")
    text = replace(example.text(), line_starts=np.array([0]))
    study = build(
        [member("SM", 1.0), member("ADP", 0.0)], text, title="t", dataset="tiny", facts={}
    )
    assert headline(study).endswith("too few sources to say more")


def test_an_unfinished_study_has_no_verdict_and_names_the_missing_models() -> None:
    lost = [replace(example.member(label, problem="lost"), curve=()) for label in ("CNN", "ASM")]
    study = study_of(member("SM", 1.0), member("ADP", 0.0), *lost)
    assert headline(study) == "Unfinished: 2 of 4 models; missing: CNN and ASM"
    seeds = study_of(member("SM", 1.0), member("ADP", 0.0), example.member("ADP", 2, problem="x"))
    assert headline(seeds).startswith("Unfinished: 1 of 2 models")
    assert headline(study_of(lost[0])) == "Unfinished: 0 of 1 models; missing: CNN"


def test_lists_of_names() -> None:
    assert [join(["a"]), join(["a", "b"]), join(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
