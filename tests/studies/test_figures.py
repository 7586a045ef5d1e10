"""Figures have every model, no empty bins, and nothing that hides the others."""

from dataclasses import replace

from studies import example_study as example

from zipflm.studies.figures import figures, paper_bars, usual_top
from zipflm.studies.study import Study


def study_with_outlier() -> Study:
    members = [example.member(label, rank=i) for i, label in enumerate(example.LABELS)]
    score = replace(members[0].scores["test"], loss=12.0, known_loss=12.0)
    curve = tuple(
        replace(point, valid_loss=12.0 if point.valid_loss else None) for point in members[0].curve
    )
    members[0] = replace(members[0], scores={"test": score, "valid": score}, curve=curve)
    return example.study_of(*members)


def test_a_model_far_above_the_others_is_named_and_does_not_squash_them() -> None:
    study = study_with_outlier()
    for name in ("learning-curves", "perplexity-against-time", "parameters-against-perplexity"):
        axes = figures(study)[name]().axes[0]
        assert any(text.get_text().startswith("above: SM ") for text in axes.texts)
    assert figures(study)["learning-curves"]().axes[0].get_ylim()[1] < 8


def test_nothing_of_the_second_half_of_a_training_is_cut_off() -> None:
    members = [example.member(label, rank=i) for i, label in enumerate(example.LABELS)]
    (first, *_, last) = (p for p in members[0].curve if p.valid_loss is not None)
    late = replace(first, valid_loss=9.0), replace(last, valid_loss=5.0)
    members[0] = replace(members[0], curve=late)
    study = example.study_of(*members)
    assert figures(study)["learning-curves"]().axes[0].get_ylim()[1] > 9.0


def test_every_model_has_bars_and_empty_bins_are_not_drawn() -> None:
    figure = figures(example.study())["loss-by-word-frequency"]()
    axes = figure.axes[0]
    assert len(axes.get_legend_handles_labels()[1]) == 8
    names = [tick.get_text().split("\n")[0] for tick in axes.get_xticklabels()]
    assert "EOS" in names and "UNK" not in names and "101-1K" in names


def test_the_papers_billion_word_chart_has_no_bin_after_the_end_of_a_sentence() -> None:
    axes = paper_bars("billion-word", previous=True).axes[0]
    names = [tick.get_text().split("\n")[0] for tick in axes.get_xticklabels()]
    assert names[0] == "UNK" and "EOS" not in names


def test_bars_that_would_flatten_all_others_are_cut_and_say_their_loss() -> None:
    study = example.study()
    assert usual_top(study.word_bins) is None
    unknown = replace(
        study.word_bins[0],
        name="UNK",
        loss=dict.fromkeys(example.LABELS, 4.0) | {"BPE": 31.5},
        interval={},
    )
    study = replace(study, word_bins=(unknown, *study.word_bins))
    axes = figures(study)["loss-by-word-frequency"]().axes[0]
    highest = max(loss or 0.0 for b in study.word_bins[1:] for loss in b.loss.values())
    assert highest < axes.get_ylim()[1] < 1.5 * highest
    assert [text.get_text() for text in axes.texts] == ["31.5"]
