"""What is doubtful about a run is said before it begins, and nothing is said of sound ones."""

import numpy as np
import pytest
import torch
import training_runs

from zipflm.presets import DATASETS, FACTORIZATIONS, preset
from zipflm.presets.recipes import resolve
from zipflm.training import advice
from zipflm.training.advice import doubts, slowness, work
from zipflm.training.trainer import train


def tiny(*overrides, recipe="paper"):
    return resolve("tiny/ADP-T", recipe, overrides, 4000)


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_no_preset_is_doubtful(dataset, factorization):
    assert list(doubts(preset(dataset, factorization))) == []


def test_a_run_that_never_leaves_the_warm_up_is_named():
    (said,) = doubts(resolve("tiny/ADP-T", "paper", ["training.max_updates=15"], 4000))
    assert "training.max_updates=15" in said and "warm-up, which takes 20 updates" in said


@pytest.mark.parametrize(("updates", "ends"), [(100, "after 200 updates"), (300, "200 or 560")])
def test_a_run_that_ends_inside_a_cycle_is_told_where_cycles_end(updates, ends):
    (said,) = doubts(tiny(f"training.max_updates={updates}"))
    assert "ends inside a cycle" in said and ends in said


@pytest.mark.parametrize("updates", [190, 200, 560])
def test_the_end_of_a_cycle_is_no_reason_to_warn(updates):
    assert list(doubts(tiny(f"training.max_updates={updates}"))) == []


def test_going_on_into_a_new_cycle_is_named():
    said = list(doubts(tiny("training.max_updates=210"), 200, tiny()))
    assert "raises the learning rate again, to 0.75" in said[0]
    assert "ends inside a cycle" in said[1]


def test_a_decay_that_is_stretched_is_named():
    modern = tiny(recipe="modern")
    longer = tiny("training.max_updates=400", recipe="modern")
    (said,) = doubts(longer, 200, modern)
    assert "after update 200" in said


@pytest.mark.parametrize("done", [1, 20, 199])
def test_going_on_within_the_same_schedule_is_not_doubtful(done):
    assert list(doubts(tiny(), done, tiny())) == []
    modern = tiny(recipe="modern")
    assert list(doubts(modern, done, modern)) == []


def test_work_counts_what_is_left():
    counts = np.arange(4000, 0, -1)
    config = tiny()
    assert work(config, counts, 50) == pytest.approx(0.75 * work(config, counts))
    assert work(config, counts, 900) == 0


def test_without_a_gpu_a_long_run_is_told_its_hours(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(advice, "cpu_speed", lambda: 4e9)
    said = slowness(113 * 3600 * 1e9, "wikitext-2/ADP-T")
    assert said.startswith("no GPU: wikitext-2/ADP-T needs about 110 hours here")
    assert "tiny, demo or small" in said
    assert slowness(1800 * 1e9, "x") is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert slowness(1e30, "x") is None


def test_the_speed_of_a_cpu_is_a_plausible_number():
    assert 1e7 < advice.cpu_speed() < 1e14


@pytest.mark.parametrize(("load", "warns"), [(2.0, False), (2.5, True)])
def test_a_busy_machine_is_named_when_a_training_starts(
    word_data, tmp_path, monkeypatch, capsys, load, warns
):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    config = training_runs.config_of(word_data, "training.max_updates=1")
    train(config, word_data, tmp_path / "run", device="cpu")
    assert ("warning: other processes keep this machine busy" in capsys.readouterr().out) == warns
