"""Tables of pairs, findings, budgets and settings: what they show, and that they are left out."""

from dataclasses import replace

from analysis import example_study as example

from zipflm.analysis.building import build
from zipflm.analysis.page_tables import (
    findings_caption,
    seen,
    seen_rows,
    statistics,
    tuning_rows,
)
from zipflm.analysis.study import Tried


def test_every_pair_is_there_in_both_directions_best_first() -> None:
    study = example.study()
    html = statistics(study)
    table = html.split('<table class="pairs">')[1].split("</table>")[0]
    first = table.split('<th scope="row">')[1].split("</th>")[0]
    assert first == study.ranked[0].label
    assert table.count("<small>") == 8 * 7
    better, worse = table.count('class="num better"'), table.count('class="num worse"')
    assert better == worse == sum(pair.nats.excludes_zero for pair in study.differences)


def test_what_each_model_saw_is_told_with_compilation_beside_the_time() -> None:
    names, rows = seen_rows(example.study(broken="CNN"))
    assert names == [
        "model", "updates", "words", "passes over the text", "operations", "time", "compilation"
    ]  # fmt: skip
    assert len(rows) == 7
    assert rows[0] == ["SM", "100", "102,400", "0.25", "3.2\u00a0T", "10.0 s", "20.0 s"]


def test_settings_that_were_tried_are_shown_with_their_cost() -> None:
    tried = (
        Tried(label="SM", setting="lr=1", perplexity=50.0, seconds=30.0, is_chosen=True),
        Tried(
            label="SM", setting="lr=9", perplexity=None, seconds=4.0, is_chosen=False,
            problem="diverged <nan>",
        ),
    )  # fmt: skip
    study = replace(example.study(), tried=tried)
    rows = tuning_rows(study)
    assert rows[0] == ["SM", "lr=1", "50.00", "30.0 s", "yes"]
    assert rows[1][2] == "diverged <nan>" and rows[2] == ["all", "", "", "34.0 s", ""]
    assert "diverged &lt;nan&gt;" in statistics(study)


def test_one_seed_is_said_beside_the_verdicts() -> None:
    assert "trained with one seed" in findings_caption(example.study())
    assert "trained with one seed" not in findings_caption(example.study(seeds=2))


def test_what_there_is_nothing_to_say_about_is_left_out() -> None:
    alone = build([example.member("SM")], example.text(), title="t", dataset="tiny", facts={})
    assert statistics(alone) == ""
    unseen = build(
        [replace(example.member("SM"), seen=None)],
        example.text(),
        title="t",
        dataset="tiny",
        facts={},
    )
    assert seen(unseen) == ""
