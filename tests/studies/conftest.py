from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from studies.study_runs import WholeStudy, make_data, train_whole_study


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds and have tests of their own; collecting garbage before every member
    takes longer than the members here."""
    monkeypatch.setattr("zipflm.studies.report.save_figures", lambda study, folder: [])
    monkeypatch.setattr("zipflm.studies.compare.gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty words, with their sub-word twin; not to be changed."""
    return make_data(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def whole_study(data: Path, tmp_path_factory: pytest.TempPathFactory) -> WholeStudy:
    """A word and a sub-word model, really trained and scored; not to be changed."""
    return train_whole_study(data, tmp_path_factory.mktemp("whole") / "study")


@pytest.fixture
def run(whole_study: WholeStudy) -> Path:
    """The run of its word model; not to be changed."""
    return whole_study.run_of("ADP-T")
