"""What the page's script draws from: one source for all, nothing where there is nothing."""

import json

import pytest
from analysis import example_study as example

from zipflm.analysis.building import build
from zipflm.analysis.chart_data import chart_data
from zipflm.analysis.tables import finite


def test_models_come_in_the_order_of_the_table_each_with_its_numbers_and_look() -> None:
    study = example.study(seeds=2)
    models = chart_data(study)["models"]
    assert [model["label"] for model in models] == list(example.LABELS)
    for row, model in zip(study.rows, models, strict=True):
        assert model["params"] == row.num_params
        assert model["perplexity"] == study.headline(row).mean
        interval = study.headline_interval(row)
        assert interval is not None and (model["low"], model["high"]) == (
            interval.low,
            interval.high,
        )
        assert model["low"] < model["perplexity"] < model["high"]
        assert [point["update"] for point in model["curve"]] == list(range(10, 101, 10))
    assert len({model["marker"] for model in models}) == len(models)


def test_a_model_without_a_result_has_its_curve_and_no_number() -> None:
    model = chart_data(example.study(broken="CNN"))["models"][example.LABELS.index("CNN")]
    assert (model["perplexity"], model["low"], model["high"]) == (None, None, None)
    assert len(model["curve"]) == 3


def test_bins_have_words_and_intervals_and_empty_ones_are_not_drawn() -> None:
    data = json.loads(json.dumps(finite(chart_data(example.study()))))
    bins = data["bins"]["word"][0]["bins"]
    assert "UNK" not in {b["name"] for b in bins}  # of which the text has none
    for b in bins:
        assert b["tokens"] > 0
        for label, (low, high) in b["interval"].items():
            assert low <= b["loss"][label] <= high
    assert set(bins[-1]["difference"]) == set(example.LABELS) - {"ADP-T"}


@pytest.mark.parametrize("by", ["word", "previous"])
def test_the_papers_bins_follow_ours_where_it_has_some_of_the_models(by: str) -> None:
    ours, wiki, billion = chart_data(example.study())["bins"][by]
    assert ours["name"] == "this study" and ours["reference"] == "ADP-T"
    assert (wiki["name"], billion["name"]) == ("the paper, WikiText-103", "the paper, Billion Word")
    rare = {source["name"]: source["bins"][2] for source in (wiki, billion)}
    expected = {"word": (8.2920, 14.3313), "previous": (2.9541, 3.5343)}[by]
    assert tuple(b["loss"]["ADP-T"] for b in rare.values()) == expected
    assert {b["name"] for b in rare.values()} == {"1-10"}


def test_of_a_study_of_settings_the_paper_has_no_bins() -> None:
    members = [example.member(f"ADP-T bands {i}k/9k", rank=i) for i in range(2)]
    study = build(members, example.text(), title="t", dataset="tiny", facts={})
    assert len(chart_data(study)["bins"]["word"]) == 1


def test_the_headline_is_that_of_the_study() -> None:
    study = example.study()
    assert chart_data(study)["headline"] == "test perplexity"
    assert chart_data(example.with_unknown(study))["headline"] == "test perplexity on known words"
