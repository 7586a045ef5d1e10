"""Learning curves plotted from logs."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from studies.study_runs import report, validation

from zipflm.runs.folder import append_line
from zipflm.studies.curves import plot

E2, E3 = float(np.exp(2.0)), float(np.exp(3.0))


def write(folder, *lines):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").touch()
    for line in lines:
        append_line(folder / "log.jsonl", line)
    return folder


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Plots runs; returns the lines by label, and the label of the y axis."""
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
        assert all(label.get_parse_math() for label in axes.get_yticklabels())  # powers of ten
        return {
            line.get_label(): np.array(line.get_xydata()).tolist() for line in axes.lines
        }, axes.get_ylabel()

    return draw


def pieces(line):
    """Turn a report into one of a subword model, with a lower loss per token."""
    return replace(line, token_unit="bpe", loss=line.loss / 2)


def test_plots_perplexity_per_word(drawn, tmp_path):
    """Both have 3 nats per word."""
    lines, ylabel = drawn(
        write(tmp_path / "word", report(5, 1.0, 3.0), validation(5, 1.0, 20.0)),
        write(tmp_path / "bpe", pieces(report(5, 1.0, 3.0)), validation(5, 1.0, 20.0)),
    )
    assert ylabel == "perplexity per word"
    assert lines == {
        "word, train": [[5.0, pytest.approx(E3)]],
        "word, valid 20.0": [[5.0, pytest.approx(20.0)]],
        "bpe, train": [[5.0, pytest.approx(E3)]],
        "bpe, valid 20.0": [[5.0, pytest.approx(20.0)]],
    }


def test_non_finite_values_leave_gaps(drawn, tmp_path):
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
    assert lines == {
        "run, train": [[5.0, pytest.approx(E2)]],
        "run, valid": [[5.0, pytest.approx(20.0)]],
    }


def test_plots_against_seconds_without_compilation(drawn, tmp_path):
    first = replace(report(5, 1.0, 2.0), compile_seconds=0.75)
    run = write(tmp_path / "run", first, validation(12, 3.5, 19.0))
    lines, _ = drawn(run, x="seconds")
    assert lines == {
        "run, train": [[0.25, pytest.approx(E2)]],
        "run, valid 19.0": [[2.75, pytest.approx(19.0)]],
    }


def test_dollar_signs_are_not_formulas(drawn, tmp_path):
    lines, _ = drawn(write(tmp_path / "a$_$b", report(5, 1.0, 2.0)))
    assert list(lines) == ["a$_$b, train"]


def test_runs_with_equal_names_are_labeled_by_path(drawn, tmp_path):
    runs = [write(tmp_path / name / "run", report(5, 1.0, 2.0)) for name in ("a", "b")]
    lines, _ = drawn(*runs, write(tmp_path / "other", report(5, 1.0, 2.0)))
    assert list(lines) == [f"{runs[0]}, train", f"{runs[1]}, train", "other, train"]


def test_plot_errors(tmp_path):
    run = write(tmp_path / "run", report(5, 1.0, 2.0))
    with pytest.raises(ValueError, match="x='time': choose from update, seconds"):
        plot([run], tmp_path / "a.png", "time")
    with pytest.raises(ValueError, match="a.xyz: unsupported file type; use .png"):
        plot([run], tmp_path / "a.xyz")
    for folder in (tmp_path / "absent", write(tmp_path / "empty")):
        with pytest.raises(ValueError, match=f"{folder}: no training log"):
            plot([folder], tmp_path / "a.png")
