"""Contents and axes of the figures."""

from dataclasses import replace

from studies import example_study as example

from zipflm.studies.figures import axis_limit, figures


def test_second_half_of_a_curve_is_visible():
    members = [example.member(label, rank=i) for i, label in enumerate(example.LABELS)]
    (first, *_, last) = (p for p in members[0].curve if p.valid_loss is not None)
    late = replace(first, valid_loss=9.0), replace(last, valid_loss=5.0)
    members[0] = replace(members[0], curve=late)
    study = example.study_of(*members)
    assert figures(study)["learning-curves"]().axes[0].get_ylim()[1] > 9.0


def test_bar_chart_has_every_model_and_no_empty_bins():
    figure = figures(example.study())["loss-by-word-frequency"]()
    axes = figure.axes[0]
    assert len(axes.get_legend_handles_labels()[1]) == 8
    names = [tick.get_text().split("\n")[0] for tick in axes.get_xticklabels()]
    assert "EOS" in names and "UNK" not in names and "101-1K" in names


def test_figure_cuts_and_labels_outlier_bars():
    study = example.study()
    assert axis_limit(study.word_bins) is None
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
