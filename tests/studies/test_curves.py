"""Curves of runs: per word whatever their tokens are, and gaps where a number is missing."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from studies.study_runs import report, validation

from zipflm.runs.folder import append_line
from zipflm.studies.curves import X_AXES, plot

E2, E3 = float(np.exp(2.0)), float(np.exp(3.0))


def write(folder, *lines):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").touch()
    for line in lines:
        append_line(folder / "log.jsonl", line)
    return folder


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The lines of a picture by their labels, and how its axis is called."""
    figures = []
    save = Figure.savefig

    def keep(self, *arguments, **options):
        figures.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)

    def draw(*runs, x="update"):
        plot(runs, tmp_path / "new" / "curves.svg", x)
        assert "<svg" in (tmp_path / "new" / "curves.svg").read_text()
        (axes,) = figures[-1].axes
        return {
            line.get_label(): np.array(line.get_xydata()).tolist() for line in axes.lines
        }, axes.get_ylabel()

    return draw


def pieces(line):
    """A report of a sub-word model: the loss per piece is lower than that per word."""
    return replace(line, token_unit="bpe", loss=line.loss / 2)


def test_words_and_sub_words_share_an_axis_of_perplexity_per_word(drawn, tmp_path):
    """Both have 3 nats per word; the sub-word model 1.5 per piece."""
    lines, ylabel = drawn(
        write(tmp_path / "word", report(5, 1.0, 3.0), validation(5, 1.0, 20.0)),
        write(tmp_path / "bpe", pieces(report(5, 1.0, 3.0)), validation(5, 1.0, 20.0)),
    )
    assert ylabel == "perplexity per word"
    assert lines == {
        "word, train": [[5.0, pytest.approx(E3)]],
        "word, valid 20.0": [[5.0, 20.0]],
        "bpe, train": [[5.0, pytest.approx(E3)]],
        "bpe, valid 20.0": [[5.0, 20.0]],
    }


def test_numbers_that_are_not_finite_leave_a_gap_and_no_figure_in_the_legend(drawn, tmp_path):
    diverged = replace(validation(9, 2.0, 20.0), nats_per_word=None, perplexity=None)
    lines, _ = drawn(
        write(
            tmp_path / "run",
            report(5, 1.0, 2.0),
            validation(5, 1.0, 20.0),
            replace(report(9, 2.0, 2.0), loss=None, nats_per_word=None, perplexity=None),
            diverged,
        )
    )
    assert lines == {"run, train": [[5.0, pytest.approx(E2)]], "run, valid": [[5.0, 20.0]]}


@pytest.mark.parametrize(
    ("x", "places"), [("update", [5, 10]), ("seconds", [1, 3]), ("epoch", [0.5, 1.5])]
)
def test_a_validation_stands_where_the_report_at_or_before_it_does(drawn, tmp_path, x, places):
    run = write(
        tmp_path / "run",
        report(5, 1.0, 2.0),
        validation(5, 1.0, 20.0),
        replace(report(10, 3.0, 2.0), epoch=1.5),
        validation(12, 3.5, 19.0),
    )
    lines, _ = drawn(run, x=x)
    assert lines["run, valid 19.0"] == [[places[0], 20.0], [places[1], 19.0]]
    assert set(X_AXES) == {"update", "seconds", "epoch"}


def test_runs_of_the_same_name_are_told_apart_by_their_paths(drawn, tmp_path):
    runs = [write(tmp_path / name / "run", report(5, 1.0, 2.0)) for name in ("a", "b")]
    lines, _ = drawn(*runs, write(tmp_path / "other", report(5, 1.0, 2.0)))
    assert list(lines) == [f"{runs[0]}, train", f"{runs[1]}, train", "other, train"]


def test_what_cannot_be_drawn_is_said(tmp_path):
    run = write(tmp_path / "run", report(5, 1.0, 2.0))
    with pytest.raises(ValueError, match="x='time': choose from update, seconds, epoch"):
        plot([run], tmp_path / "a.png", "time")
    with pytest.raises(ValueError, match="a.xyz: cannot draw into this kind of file; use .png"):
        plot([run], tmp_path / "a.xyz")
    with pytest.raises(ValueError, match="absent: no run folder"):
        plot([tmp_path / "absent"], tmp_path / "a.png")
    with pytest.raises(ValueError, match="empty: its log has no reports yet"):
        plot([write(tmp_path / "empty")], tmp_path / "a.png")
