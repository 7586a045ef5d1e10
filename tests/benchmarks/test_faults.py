"""The benchmark of faults kills commands and detects differences."""

import json

import pytest
from benchmark_scripts import load

faults = load("faults")


@pytest.mark.slow
def test_repairs_killed_commands(tmp_path, capsys):
    path = tmp_path / "outcomes.json"
    faults.main(["--commands", "prepare", "--kills", "2", "--moments", "1", "--json", str(path)])
    titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.split() == "command killed at kills partial resumed bit-equal leftovers".split()
    groups = json.loads(path.read_text())
    assert len(groups) == (2 if faults.can_trace() else 1)
    for outcomes in groups.values():
        assert all(outcome["is_resumed"] and not outcome["differing"] for outcome in outcomes)


@pytest.mark.slow
def test_repairs_a_killed_run(tmp_path):
    """One kill, around the time when the second checkpoint is written."""
    if not faults.can_trace():
        pytest.skip("needs strace")
    (trial,) = faults.trials(["train"], tmp_path)
    kill = faults.Kill("rename", 9)
    outcome = faults.observe(trial, kill, tmp_path)
    assert outcome == faults.Outcome(kill, True, True, [], [])


@pytest.fixture
def trial(tmp_path):
    """A command that does nothing, in a folder that is already complete."""
    template = tmp_path / "template"
    template.mkdir()
    (template / "a").write_text("1")
    command = faults.Command([], faults.files_below, lambda place: True)
    return faults.Trial("none", command, template, faults.files_below(template), {"a", "tmp"})


@pytest.mark.parametrize(
    ("change", "differing", "leftovers"),
    [
        (lambda place: None, [], []),
        (lambda place: (place / "a").write_text("2"), ["a"], []),
        (lambda place: (place / "a").unlink(), ["a"], []),
        (lambda place: (place / ".a.lock").touch(), [".a.lock"], [".a.lock"]),
        (lambda place: (place / "tmp" / "b").mkdir(), [], ["tmp/b"]),
    ],
)
def test_counts_every_difference(trial, tmp_path, monkeypatch, change, differing, leftovers):
    def killed(command, place, kill):
        change(place)
        return True

    monkeypatch.setattr(faults, "run_and_kill", killed)
    outcome = faults.observe(trial, faults.Kill("write", 1), tmp_path)
    assert (outcome.differing, outcome.leftovers) == (differing, leftovers)
    counts = faults.row("none", "1 call", [outcome])[-2:]
    assert counts == (str(int(not differing)), str(int(bool(leftovers))))
    assert bool(list(faults.explain([outcome]))) == bool(differing or leftovers)
