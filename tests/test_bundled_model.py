"""The model included in the package."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import zipflm
import zipflm.cli
from zipflm.runs.folder import MODELS

NAME = "state-of-the-union"


@pytest.fixture(scope="module")
def lm():
    return zipflm.load(NAME, device="cpu")


def test_generates_and_scores(lm):
    (text,) = lm.generate("My fellow citizens,", max_words=20, lines=0, seed=1)
    assert len(text.words) == 20
    assert lm.perplexity("The state of the Union is strong.") < 200


def test_model_card_matches_the_saved_validation(lm):
    valid = lm.run.checkpoint.state().valid
    assert f"| valid | {valid.perplexity:.2f} | {valid.words:,} |" in (
        MODELS / NAME / "README.md"
    ).read_text(encoding="utf-8")


@pytest.mark.slow
def test_perplexity_on_the_model_card(tmp_path):
    zipflm.prepare(corpus=NAME, words="words", out=tmp_path)
    card = (MODELS / NAME / "README.md").read_text()
    result = zipflm.evaluate(MODELS / NAME, data=tmp_path, split="test", device="cpu")
    assert f"| test | {result.perplexity:.2f} | {result.scores.protocol.words:,} |" in card


def test_is_at_most_six_megabytes():
    files = [path for path in (MODELS / NAME).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 6_000_000


def test_a_local_folder_takes_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    with pytest.raises(ValueError, match="no checkpoints found"):
        zipflm.load(NAME)


def test_serve_uses_it_by_default(monkeypatch):
    pytest.importorskip("fastapi")
    served = []
    monkeypatch.setattr("zipflm.serving.server.serve", lambda runs, **_: served.extend(runs))
    done = CliRunner().invoke(zipflm.cli.app, ["serve"])
    assert done.exit_code == 0 and served == [NAME]
