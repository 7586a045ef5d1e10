"""Tuning with `--grid`."""

import pytest
from studies.study_runs import FakeTrainer, run_study

from zipflm.studies.budgets import parse_grid

DROPOUT = "decoder.dropout=0,0.1,0.4"
ORDER = ("SM", "ADP-T")


class Tuned(FakeTrainer):
    """SM is best without dropout, ADP-T with 0.4; the member `fails` diverges with 0.1."""

    def __init__(self, **options):
        self.fails = options.pop("fails", "")
        super().__init__(**options)
        self.seen = []

    def __call__(self, config, data, out, **options):
        label, dropout = config.name.split("/")[1], config.decoder.dropout
        self.seen.append((label, dropout, config.training.seed))
        if self.fails == label and dropout == 0.1:
            raise ValueError("diverged")
        self.valid = 100 + (dropout if label == "SM" else -dropout) * 10
        return super().__call__(config, data, out)


def run(data, out, trainer, **changes):
    return run_study(data, out, trainer, **{"factorizations": ORDER, "grid": (DROPOUT,), **changes})


def test_each_member_gets_its_best_setting(data, tmp_path):
    trainer = Tuned()
    study = run(data, tmp_path, trainer, seeds=2).study
    first = [(label, dropout, 1) for label in ORDER for dropout in (0.0, 0.1, 0.4)]
    # Then the second seed with the chosen settings.
    assert trainer.seen == [*first, ("SM", 0.0, 2), ("ADP-T", 0.4, 2)]
    assert [row.first.config.decoder.dropout for row in study.rows] == [0.0, 0.4]
    assert [len(row.members) for row in study.rows] == [2, 2]
    chosen = {tried.label: tried.setting for tried in study.tried if tried.is_chosen}
    assert chosen == {"SM": "dropout=0", "ADP-T": "dropout=0.4"}
    assert len(study.tried) == 6 and all(tried.seconds == 2.0 for tried in study.tried)
    assert study.rows[1].first.run.endswith("ADP-T/decoder.dropout-0.4/seed-1")
    page = (tmp_path / "report.html").read_text()
    assert 'id="tuning"' in page and "12.0 s" in page  # total time


def test_resumes_interrupted_tuning(data, tmp_path):
    first = Tuned(stops_at="ADP-T")
    outcome = run(data, tmp_path, first)
    assert outcome.stopped and [label for label, *_ in first.seen] == ["SM"] * 3 + ["ADP-T"]
    assert all("interrupted" in row.problem for row in outcome.study.rows)
    second = Tuned()
    outcome = run(data, tmp_path, second)
    assert [label for label, *_ in second.seen] == ["ADP-T"] * 3 and not outcome.stopped
    again = Tuned()
    assert len(run(data, tmp_path, again).study.finished) == 2 and again.seen == []


def test_failed_setting_is_not_chosen(data, tmp_path):
    study = run(data, tmp_path, Tuned(fails="SM")).study
    (failed,) = (tried for tried in study.tried if tried.problem)
    assert (failed.label, failed.setting, failed.problem) == ("SM", "dropout=0.1", "diverged")
    assert len(study.finished) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("decoder.dropout", "write a field and the values"),
        ("decoder.dropout=", "write a field and the values"),
        ("decoder.dropout=0,0", "give every field and every value once"),
        ("training.max_updates=1,2", "max_updates cannot be tuned"),
    ],
)
def test_rejects_invalid_grids(given, message):
    with pytest.raises(ValueError, match=message):
        parse_grid([given])


def test_rejects_grids_that_do_not_fit_all_members(data, tmp_path):
    trainer = Tuned()
    for tune, message in (
        ("output.tail_dropout=0,0.1", "grid: SM has no such field"),
        ("decoder.dropout=0,7", "grid=decoder.dropout=7: SM: "),
    ):
        with pytest.raises(ValueError, match=message):
            run(data, tmp_path / "study", trainer, grid=(tune,))
    assert trainer.seen == []
