"""Figures come out as SVG and PNG, the same for the same study, without empty bins."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

from studies import example_study as example

from zipflm.studies.figures import figures, save_figures, time_unit
from zipflm.studies.study import Study


def test_every_figure_is_written_twice_and_the_svg_is_reproducible(tmp_path: Path) -> None:
    members = [example.member(label, rank=i) for i, label in enumerate(("SM", "ADP-T"))]
    study = example.study_of(*members)
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


def test_names_of_points_do_not_overlap() -> None:
    members = [
        replace(example.member(f"ADP-T bands {i}k/155k/100k", rank=3), seed=i) for i in range(4)
    ]
    study = example.study_of(*members)
    texts = figures(study)["parameters-against-perplexity"]().axes[0].texts
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_times_are_in_the_unit_that_suits_them() -> None:
    assert [time_unit(x)[0] for x in (100, 3000, 90_000)] == ["seconds", "minutes", "hours"]


def test_a_study_without_curves_has_no_curve_figures() -> None:
    study = example.study()
    rows = tuple(replace(row, curve=()) for row in study.rows)
    assert "learning-curves" not in figures(replace(study, rows=rows))
