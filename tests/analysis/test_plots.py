"""Figures come out as SVG and PNG, the same for the same study, with empty bins said to be so."""

from pathlib import Path

from analysis import example_study as example

from zipflm.analysis.plots import figures, paper_bars, save_figures


def test_every_figure_is_written_twice_and_the_svg_is_reproducible(tmp_path: Path) -> None:
    study = example.study()
    written = save_figures(study, tmp_path / "a")
    assert {path.suffix for path in written} == {".svg", ".png"}
    assert len(written) == 2 * len(figures(study)) == 10
    save_figures(study, tmp_path / "b")
    for path in written:
        if path.suffix == ".svg":
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_the_papers_charts_are_drawn_for_its_datasets() -> None:
    names = set(figures(example.study(dataset="wikitext-103")))
    assert {"paper-loss-by-word-frequency", "paper-loss-by-previous-word-frequency"} <= names


def test_every_model_has_bars_and_empty_bins_say_so() -> None:
    figure = figures(example.study())["loss-by-word-frequency"]()
    axes = figure.axes[0]
    assert len(axes.get_legend_handles_labels()[1]) == 8
    assert "no words" in {text.get_text() for text in axes.texts}


def test_the_papers_billion_word_chart_has_no_bars_after_the_end_of_a_sentence() -> None:
    axes = paper_bars("billion-word", previous=True).axes[0]
    assert all(container[0].get_height() == 0 for container in axes.containers)


def test_a_study_without_curves_has_no_curve_figures() -> None:
    from dataclasses import replace

    study = example.study()
    rows = tuple(replace(row, curve=()) for row in study.rows)
    assert "learning-curves" not in figures(replace(study, rows=rows))
