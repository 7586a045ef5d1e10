"""The model that comes with the package."""

from pathlib import Path

import pytest

import zipflm
from zipflm.runs.folder import MODELS

NAME = "state-of-the-union"


@pytest.fixture(scope="module")
def lm():
    return zipflm.load(NAME, device="cpu")


def test_it_continues_a_text(lm):
    (text,) = lm.generate("My fellow citizens,", max_words=20, seed=1)
    assert len(text.words) == 20
    assert lm.perplexity("The state of the Union is strong.") < 200


@pytest.mark.slow
def test_its_card_tells_the_perplexity_that_is_measured(lm, tmp_path):
    data = zipflm.prepare(corpus=NAME, words="words", out=tmp_path / "data")
    found = zipflm.evaluate(NAME, data=data, split="test", device="cpu")
    assert f"| test | {found.perplexity:.2f} |" in (MODELS / NAME / "README.md").read_text()


def test_it_takes_at_most_six_megabytes():
    files = [path for path in (MODELS / NAME).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 6_000_000


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    with pytest.raises(ValueError, match="no run with a checkpoint"):
        zipflm.load(NAME)
