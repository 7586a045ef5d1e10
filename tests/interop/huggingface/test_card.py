import re

import pytest
import training_runs

from zipflm.interop.huggingface.exchange import model_card
from zipflm.runs.load import load_run
from zipflm.runs.records import ImportedState


@pytest.fixture(scope="module")
def run(word_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("card") / "run"
    training_runs.run(word_data, out, "training.max_updates=5")
    return load_run(out)


def card(run):
    return model_card(run, run.checkpoint.state(), run.folder.versions())


def test_card_has_numbers_and_protocol(run):
    (valid,) = training_runs.validations(run.folder.path)
    text = card(run)
    assert f"| perplexity per word | {valid.perplexity:.4f} |" in text
    assert f"{valid.tokens:,} tokens ({valid.words:,} words)" in text
    assert f"| blocks | {valid.blocks.block} tokens including {valid.blocks.context} of" in text
    assert run.vocabulary.hash in text and run.weights_hash in text
    assert f"{run.config.num_params():,}" in text
    assert "--words whitespace" in text


def test_card_without_evaluation_has_no_numbers(runs):
    text = card(load_run(runs["ADP-T"]))
    evaluation = text.split("## Evaluation")[1]
    assert "recorded no evaluation" in evaluation and not re.search(r"\d", evaluation)
    assert "trained elsewhere, imported from | `made up` |" in text


def test_card_has_no_local_paths(runs, run):
    text = model_card(run, ImportedState(update=1, imported_from="/home/me/model.pt"), None)
    assert "imported from | `model.pt` |" in text and "/home" not in text
    assert str(run.folder.path) not in card(run)


def test_card_escapes_names(run, monkeypatch):
    object.__setattr__(run.config, "name", "a|b\x1b[2J`")
    assert "\x1b" not in card(run)
