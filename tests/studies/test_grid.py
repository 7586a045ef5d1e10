"""The same grid for every member, decided on the valid set; nothing is trained twice."""

from pathlib import Path

import pytest
from studies.study_runs import PretendTrainer, pretend_score

from zipflm.config import Config
from zipflm.data.folder import DataFolder
from zipflm.studies.budgets import parse_grid
from zipflm.studies.compare import FinishedStudy, compare
from zipflm.studies.plan import Request

DROPOUT = "decoder.dropout=0,0.1,0.4"
ORDER = ("SM", "ADP-T")


class Tuned(PretendTrainer):
    """SM does best without dropout, ADP-T with 0.4; a dropout of 0.1 diverges where told."""

    def __init__(self, **options: str) -> None:
        self.fails = options.pop("fails", "")
        super().__init__(**options)
        self.seen: list[tuple[str, float, int]] = []

    def __call__(self, config: Config, data: DataFolder, out: Path) -> bool:
        label, dropout = config.name.split("/")[1], config.decoder.dropout
        self.seen.append((label, dropout, config.training.seed))
        if self.fails == label and dropout == 0.1:
            raise ValueError("diverged")
        self.valid = 100 + (dropout if label == "SM" else -dropout) * 10
        return super().__call__(config, data, out)


def run(data: Path, out: Path, trainer: Tuned, **changes: object) -> FinishedStudy:
    fields: dict[str, object] = {"factorizations": ORDER, "grid": (DROPOUT,), **changes}
    request = Request(data=data, preset="tiny", out=out, **fields)  # type: ignore[arg-type]
    return compare(request, train=trainer, score=pretend_score)


def test_every_member_takes_what_suits_it_and_trains_nothing_twice(
    data: Path, tmp_path: Path
) -> None:
    trainer = Tuned()
    study = run(data, tmp_path, trainer, seeds=2).study
    first = [(label, dropout, 1) for label in ORDER for dropout in (0.0, 0.1, 0.4)]
    # Of the chosen settings the second seed is left to train.
    assert trainer.seen == [*first, ("SM", 0.0, 2), ("ADP-T", 0.4, 2)]
    assert [row.first.config.decoder.dropout for row in study.rows] == [0.0, 0.4]
    assert [len(row.members) for row in study.rows] == [2, 2]
    chosen = {tried.label: tried.setting for tried in study.tried if tried.is_chosen}
    assert chosen == {"SM": "dropout=0", "ADP-T": "dropout=0.4"}
    assert len(study.tried) == 6 and all(tried.seconds == 2.0 for tried in study.tried)
    assert study.rows[1].first.run.endswith("ADP-T/decoder.dropout-0.4/seed-1")
    page = (tmp_path / "report.html").read_text()
    assert 'id="tuning"' in page and "12.0 s" in page  # what all of it took


def test_a_study_that_is_interrupted_while_it_tunes_goes_on(data: Path, tmp_path: Path) -> None:
    first = Tuned(stops_at="ADP-T")
    outcome = run(data, tmp_path, first)
    assert outcome.stopped and [label for label, *_ in first.seen] == ["SM"] * 3 + ["ADP-T"]
    assert all("interrupted" in row.problem for row in outcome.study.rows)
    second = Tuned()
    outcome = run(data, tmp_path, second)
    assert [label for label, *_ in second.seen] == ["ADP-T"] * 3 and not outcome.stopped
    again = Tuned()
    assert len(run(data, tmp_path, again).study.finished) == 2 and again.seen == []


def test_a_setting_that_cannot_be_trained_is_not_taken(data: Path, tmp_path: Path) -> None:
    study = run(data, tmp_path, Tuned(fails="SM")).study
    (failed,) = (tried for tried in study.tried if tried.problem)
    assert (failed.label, failed.setting, failed.problem) == ("SM", "dropout=0.1", "diverged")
    assert len(study.finished) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("decoder.dropout", "write a field and the values"),
        ("decoder.dropout=", "write a field and the values"),
        ("decoder.dropout=0,0", "name every field and every value once"),
        ("training.max_updates=1,2", "held equal between members"),
    ],
)
def test_a_grid_that_is_none_is_refused(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_grid([given])


def test_what_a_member_cannot_take_is_refused_before_anything_is_trained(
    data: Path, tmp_path: Path
) -> None:
    trainer = Tuned()
    for tune, message in (
        ("output.tail_dropout=0,0.1", "--grid: SM has no such field"),
        ("decoder.dropout=0,7", "--grid decoder.dropout=7: SM: "),
    ):
        with pytest.raises(ValueError, match=message):
            run(data, tmp_path / "study", trainer, grid=(tune,))
    assert trainer.seen == []
