"""Every decoder with every command: train, evaluate, score, generate, export."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import zipflm.cli
from zipflm.language.model import load

DECODERS = ["gcnn", "lstm", "qrnn"]


def call(*arguments):
    result = CliRunner().invoke(zipflm.cli.app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def runs(word_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in DECODERS:
        call(
            *("train", f"tiny/ADP-T/{name}", "--data", word_data.path, "--out", folder / name),
            *("batches.block=8", "batches.tokens=32", "batches.eval_block=8", "--device", "cpu"),
            *("training.tokens_per_update=32", "training.max_updates=3"),
        )
    return folder


@pytest.fixture(params=DECODERS)
def run(request, runs):
    return runs / request.param


def test_commands(run, word_data, tmp_path):
    evaluated = call("evaluate", run, "--data", word_data.path, "--split", "valid", "--json")
    carried = call(
        *("evaluate", run, "--data", word_data.path, "--split", "valid", "--json"),
        *("--break", "stream", "--block", "8"),
    )
    whole = call(
        *("evaluate", run, "--data", word_data.path, "--split", "valid", "--json"),
        *("--break", "none", "--block", "500"),
    )
    numbers = [json.loads(each)["perplexity"] for each in (evaluated, carried, whole)]
    assert np.isfinite(numbers).all()
    assert numbers[1] == pytest.approx(numbers[2], rel=1e-4)
    text = tmp_path / "text.txt"
    text.write_text("ba be bi\n")
    assert call("score", run, text).count("\n") >= 4
    generated = call("generate", run, "--prompt", "ba", "--seed", "1", "--max-words", "20")
    assert generated == call("generate", run, "--prompt", "ba", "--seed", "1", "--max-words", "20")


def test_recurrent_states_never_slide(run):
    """Scoring word by word, far beyond the block, equals one pass over the whole text."""
    lm = load(run, device="cpu")
    words = ["ba", "be", "bi"] * 10
    state, total = lm.start(), 0.0
    for word in words:
        logprob, state = lm.advance(state, word)
        total += logprob
    assert len(state.inputs) == 1
    ids = torch.tensor([[2, *lm.encode(" ".join(words))]])
    with torch.no_grad():
        expected = -lm.model.nll(ids[:, :-1], ids[:, 1:]).sum()
    assert total == pytest.approx(float(expected), rel=1e-4)
    together = lm.generate(" ".join(words), num=3, seed=1, max_words=20, lines=0)
    assert len(together) == 3


def test_rows_of_a_step_are_independent(run):
    lm = load(run, device="cpu")
    states = [lm.start("ba be"), lm.start("bi"), lm.start("ba be bi bo")]
    alone = [lm.advance(state, "ba")[0] for state in states]
    states = [lm.start("ba be"), lm.start("bi"), lm.start("ba be bi bo")]
    together = [logprob for logprob, _ in lm.advance_many(states, ["ba"] * 3)]
    np.testing.assert_allclose(together, alone, rtol=1e-4)


@torch.no_grad()
def test_round_trip_through_transformers(run, tmp_path):
    call("export", run, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    native = load(run, device="cpu").model
    words = torch.randint(4, native.config.vocab_size, (2, 6))
    expected = native.log_probs(words)
    torch.testing.assert_close(model(words).logits, expected, atol=1e-5, rtol=0)
    padded = torch.cat([torch.full((2, 3), 1), words], dim=1)
    left = model(padded, attention_mask=(padded != 1).long()).logits[:, 3:]
    torch.testing.assert_close(left, expected, atol=1e-5, rtol=0)
    generated = model.generate(words, max_new_tokens=4, do_sample=False)
    log_probs = native.log_probs(generated[:, :-1])[:, 5:]
    log_probs[..., [0, 1, 3]] = -torch.inf  # special tokens are never generated
    assert torch.equal(generated[:, 6:], log_probs.argmax(-1)) or (generated[:, 6:] == 2).any()
    with pytest.raises(ValueError, match="use_cache: a .*Decoder has no keys and values"):
        model(words, use_cache=True)
    call("import", tmp_path / "exported", tmp_path / "back")
    assert load(tmp_path / "back", device="cpu").run.config == load(run, device="cpu").run.config
