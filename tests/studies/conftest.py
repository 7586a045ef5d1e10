from types import SimpleNamespace

import pytest
from studies.study_runs import make_data, train_whole_study


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Skip figures, which have their own tests, and garbage collection before every member."""
    monkeypatch.setattr("zipflm.studies.report.save_figures", lambda study, folder: [])
    monkeypatch.setattr("zipflm.training.throughput.gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data folder of forty words and its subword data. Do not modify."""
    return make_data(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def whole_study(data, tmp_path_factory):
    """A word and a subword model, trained and scored. Do not modify."""
    return train_whole_study(data, tmp_path_factory.mktemp("whole") / "study")


@pytest.fixture
def run(whole_study):
    """The run of its word model. Do not modify."""
    return whole_study.run_of("ADP-T")
