"""Bars of every model, without empty bins, and none that hides the others."""

from dataclasses import replace

from studies import example_study as example

from zipflm.studies.figures import figures, paper_bars, usual_top


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
