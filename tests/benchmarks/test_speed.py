"""The benchmark of all speeds runs at toy size, and its baselines give the same results."""

import json

import pytest
import torch
from benchmark_scripts import load

from zipflm.model.adaptive_softmax import AdaptiveSoftmax
from zipflm.model.bands import Bands
from zipflm.model.inputs import AdaptiveEmbedding

BANDS = Bands(200, (40, 100), 16, 2)


@pytest.fixture
def speed():
    return load("speed")


def test_measures_every_part(speed, monkeypatch, tmp_path, capsys):
    toy = speed.SIZES["cpu"]._replace(
        tokens=32, bands=BANDS, full_width=8, steps=(("tiny/ADP-T", 256),)
    )
    monkeypatch.setitem(speed.SIZES, "cpu", toy)
    target = tmp_path / "speed.json"
    speed.main(["--device", "cpu", "--rounds", "1", "--json", str(target)])
    found = json.loads(target.read_text())
    assert found["device"] == "CPU" and found["torch"] == torch.__version__
    assert {row["part"] for row in found["rows"]} == set(speed.PARTS)
    assert all(row["ms"] > 0 for row in found["rows"])
    assert len(capsys.readouterr().out.splitlines()) == len(found["rows"])


def test_published_style_gives_the_same_results(speed):
    embedding = AdaptiveEmbedding(BANDS)
    softmax = AdaptiveSoftmax(BANDS, tied_to=embedding, tie="projections", reduction="sum")
    words = speed._targets(BANDS, 64, torch.device("cpu"))
    torch.testing.assert_close(speed.published_embedding(embedding, words), embedding(words))
    hidden = torch.randn(64, 16)
    ours, theirs = softmax(hidden, words), speed.published_loss(softmax, hidden, words)
    torch.testing.assert_close(ours, theirs)


def test_chunks_give_the_same_results(speed):
    hidden, weight, targets = torch.randn(5000, 8), torch.randn(50, 8), torch.arange(5000) % 50
    expected = torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    torch.testing.assert_close(speed._compiled_chunks(hidden, weight, targets)(), expected)
