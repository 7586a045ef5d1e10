"""The sentences are true of the study, and quote the paper only on models that both have."""

from dataclasses import replace

from analysis import example_study as example

from zipflm.analysis.findings import findings
from zipflm.analysis.study import NOT_COMPILED, Member, Study, build


def study_of(*members: Member, dataset: str = "tiny") -> Study:
    return build(members, example.text(), title="t", dataset=dataset, facts={})


def test_the_papers_findings_are_those_of_its_tables() -> None:
    overall, rare, previous, tying, _ = findings(example.study())
    assert overall.endswith("The paper on WikiText-103: ADP-T lowest, SM highest.")
    assert rare.endswith("The paper on WikiText-103: ADP-T lowest, SM highest.")
    assert previous.endswith("The paper on WikiText-103: ADP-T lowest, SM highest.")
    assert tying.replace("\u00a0", " ").endswith("SM -6.2 %, BPE -3.3 %, ADP -5.7 %.")


def test_a_study_of_billion_word_is_held_against_the_papers_billion_word() -> None:
    overall, *_, tying, _ = findings(example.study(dataset="billion-word"))
    assert overall.endswith(
        "The paper on Billion Word, which has 6 of these models: ADP-T lowest, BPE-T highest."
    )
    assert tying.replace("\u00a0", " ").endswith("Billion Word: BPE +1.4 %, ADP -3.4 %.")


def test_the_paper_is_left_out_where_it_has_no_such_models() -> None:
    members = [example.member(f"ADP-T bands {i}k/9k", rank=i) for i in range(3)]
    assert not any("paper" in sentence for sentence in findings(study_of(*members)))


def test_of_two_models_none_is_named_twice() -> None:
    overall = findings(study_of(example.member("SM"), example.member("ADP", rank=1)))[0]
    assert overall.split(" The paper")[0].count("SM") == 1


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
