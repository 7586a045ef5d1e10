"""The benchmark of decoding runs at toy size, and its two sides draw from the same distribution."""

import json

import pytest
import torch
from benchmark_scripts import load

from zipflm import LanguageModel, preset
from zipflm.model.all_words import AllWords
from zipflm.model.next_word import NextWord

SIZES = ["--device", "cpu", "--prompt", "3", "--words", "2", "--rounds", "1", "--batch", "1", "2"]


def results(capsys):
    title, *lines = capsys.readouterr().out.splitlines()
    return title, [json.loads(line) for line in lines]


@pytest.mark.parametrize("model", ["tiny/ADP-T", "tiny/SM"])
def test_every_choice_is_measured_at_every_batch(model, capsys):
    benchmark = load("decoding")
    benchmark.main([*SIZES, "--preset", model, "decoder.num_layers=1"])
    title, lines = results(capsys)
    assert f"{model}, 1 layers, random weights" in title
    assert ("tails turned" in title) == (model == "tiny/ADP-T")
    assert [line["batch"] for line in lines] == [1] * 4 + [2] * 4
    assert [line["choice"] for line in lines[:4]] == list(benchmark.CHOICES)
    for line in lines:
        assert min(line["words_per_s"], line["full_words_per_s"], line["output_ms"]) > 0
        assert 0 <= line["steps_with_tails"] <= 1 and line["tails_per_word"] <= 2


def test_a_trained_run_is_measured_with_its_own_weights(imported_run, capsys):
    load("decoding").main([*SIZES, "--run", str(imported_run), "--choices", "greedy"])
    title, lines = results(capsys)
    assert "random" not in title
    assert len(lines) == 2


def test_tails_get_the_probability_asked_for():
    benchmark = load("decoding")
    model = LanguageModel(preset("tiny", "ADP-T")).eval()
    with torch.no_grad():
        benchmark.turn_tails(model, [0.2, 0.1], "cpu")
        text = torch.rand(40, 30).pow(8) * 4000
        tails = model.output.head_log_probs(model(text.long()))[..., 400:].exp()
    found = tails.flatten(0, 1).mean(0).tolist()
    assert found == pytest.approx([0.2, 0.1], rel=0.5)


@pytest.mark.parametrize("choice", ["greedy", "draw", "top 50", "nucleus 0.95 at 0.8"])
def test_both_sides_choose_alike(choice):
    benchmark = load("decoding")
    model = LanguageModel(preset("tiny", "ADP-T")).eval()
    forbidden = torch.arange(4000) % 5 == 0
    with torch.no_grad():
        hidden = 4 * model(torch.randint(4000, (1, 3)))[0, -1:].expand(3000, -1)
        settings = benchmark.CHOICES[choice]
        lazy = benchmark.lazy(NextWord(model.output, forbidden), settings)(hidden)
        full = benchmark.full(AllWords(model.output, forbidden), settings)(hidden)
    assert not forbidden[lazy].any() and not forbidden[full].any()
    if choice == "greedy":
        assert torch.equal(lazy, full)
    # The share of draws in which they would differ even if each was the best of matches.
    ours, theirs = (ids.bincount(minlength=4000).double() / 3000 for ids in (lazy, full))
    most_likely = theirs.topk(10).indices
    assert (ours - theirs)[most_likely].abs().max() < 0.05
