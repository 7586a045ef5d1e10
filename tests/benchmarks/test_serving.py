"""The benchmark of serving runs at toy size and detects wrong responses."""

import json
from contextlib import contextmanager

import pytest
import torch
import training_runs
from benchmark_scripts import load
from serving.services import Running

from zipflm.serving.models import load_models
from zipflm.serving.worker import Limits


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark with servers in this process, to save time."""
    benchmark = load("serving")

    @contextmanager
    def server(run, *options):
        limits = Limits(**{"max_batch_tokens": int(options[1])} if options else {})
        with Running(load_models([str(run)], device="cpu"), limits) as service:
            yield service.port

    monkeypatch.setattr(benchmark, "server", server)
    threads = torch.get_num_threads()
    yield benchmark
    torch.set_num_threads(threads)


@pytest.fixture
def arguments(word_data, tmp_path):
    training_runs.run(word_data, tmp_path / "run", "training.max_updates=2")
    text = tmp_path / "text"
    text.write_text("ba be bila boro bu ban bi ka ke kila koro\n" * 3)
    sizes = ["--seconds", "0.2", "--clients", "1,8", "--requests", "150"]
    return ["--run", str(tmp_path / "run"), "--text", str(text), *sizes]


def test_measures_everything_without_losses(benchmark, arguments, capsys):
    benchmark.main(arguments)
    out = capsys.readouterr().out.splitlines()
    rows = [line for line in out if line.startswith(("| score", "| write"))]
    assert len(rows) == 8
    result = json.loads(out[-1])
    assert result["wrong"] == result["lost"] == 0 and set(result["gains"]) == {"score", "write"}
    assert sum(line.count("'misbehaved: ") for line in out) >= 4


def test_detects_wrong_responses(benchmark, arguments, monkeypatch, capsys):
    monkeypatch.setattr("zipflm.serving.scores.rounded", lambda number: number + 0.01)
    with pytest.raises(SystemExit, match="lost or wrong"):
        benchmark.main([*arguments, "--seconds", "0", "--requests", "20"])
