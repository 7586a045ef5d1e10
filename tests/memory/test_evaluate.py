from pathlib import Path

import numpy as np
import pytest
import torch
from loaded_models import loaded, on_disk
from memory_reference import with_cache
from small_data import make_folder

from zipflm.data.batches import Batches, batch_of
from zipflm.data.prepare import Options, prepare
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.memory.building import build
from zipflm.memory.specs import CACHE_FILE, open_memories
from zipflm.memory.tuning import best_weights, draw_windows, tune
from zipflm.runs.load import load_run

NAMES = ["cache:30,weight=0.2,temperature=0.1", "cache,weight=0.1,temperature=0.2,reset=line"]


def scored(run, data, memory, **options):
    options = ScoringOptions(memory=memory, device="cpu", **options)
    return evaluate(run, data=data, split="valid", options=options).scores


def reference(run, data, blocks, **settings):
    """nll of every token from the vectors and distributions of the model."""
    tokens = data.tokens("valid")
    batches = Batches(tokens, blocks, max_tokens=64, shuffle=False, in_order=True)
    hidden, probs = [], []
    with torch.inference_mode():
        for index in range(len(batches)):
            batch = batch_of(tokens.ids, batches.windows(0, index))
            vectors = run.model(batch.inputs)[batch.scored]
            hidden.append(vectors)
            probs.append(run.model.output.log_probs(vectors).exp())
    words = np.minimum(tokens.ids.astype(np.int64), run.config.vocab_size)
    words = np.where(words < run.config.num_predicted, words, 3)
    mixed = with_cache(torch.cat(probs).numpy(), torch.cat(hidden).numpy(), words, **settings)
    return -np.log(mixed[np.arange(len(words)), words])


@pytest.mark.parametrize("label", ["ADP-T", "SM", "BPE", "CNN"])
def test_equals_the_definition_for_every_kind_of_model(tmp_path, label):
    data = make_folder(tmp_path, "data", **({"bpe": 40} if label == "BPE" else {}))
    run = loaded(data, label).run
    scores = scored(run, data, NAMES[:1])
    settings = {"window": 30, "weight": 0.2, "temperature": 0.1}
    expected = reference(run, data, scores.protocol.blocks, **settings)
    np.testing.assert_allclose(scores.nll, expected, rtol=1e-6, atol=2e-6)
    assert scores.protocol.memory == ("cache:30,weight=0.2,temperature=0.1,reset=none",)
    assert scores.protocol.words == data.split("valid").words


@pytest.mark.parametrize("break_mode", ["none", "complete", "sentence"])
@pytest.mark.parametrize("context", [0, 6])
def test_does_not_depend_on_the_batch_size(lm, data, break_mode, context):
    options = {"break_mode": break_mode, "block": 16, "context": context}
    one, many = (scored(lm.run, data, NAMES, batch_tokens=n, **options) for n in (16, 200))
    np.testing.assert_allclose(one.nll, many.nll, rtol=1e-6, atol=2e-6)
    assert one.perplexity != scored(lm.run, data, [], **options).perplexity


def test_reported_memories_are_valid_options(lm, data):
    options = ScoringOptions(memory=NAMES, device="cpu")
    evaluation = evaluate(lm.run, data=data, split="valid", options=options)
    names = evaluation.report()["memory"]
    assert names[0] == "cache:30,weight=0.2,temperature=0.1,reset=none"
    assert [f"memory      {name}" for name in names] == [
        line for line in evaluation.as_text().splitlines() if line.startswith("memory")
    ]
    assert open_memories(names, lm.run, "cpu").names == tuple(names)


def test_best_weights_maximise_the_likelihood():
    ratios = np.random.default_rng(0).lognormal(0, 2, size=(3, 500)) * [[0.2], [1], [3]]
    (grid,) = np.meshgrid(np.linspace(0, 0.999, 1000))
    for ratio, weight in zip(ratios, best_weights(ratios), strict=True):
        likelihood = [np.log1p(each * (ratio - 1)).sum() for each in grid]
        assert abs(weight - grid[np.argmax(likelihood)]) < 2e-3


@pytest.fixture
def run(lm, tmp_path):
    return load_run(on_disk(lm, tmp_path / "run"))


def test_uses_tuned_settings(run, data, tmp_path):
    store = str(tmp_path / "store")
    build(run, data, tmp_path / "store", max_keys=800)
    result = tune(run, data, [f"{store},k=64", "cache"], options=ScoringOptions(device="cpu"))
    assert result.without == pytest.approx(scored(run, data, []).perplexity)
    neighbors, cache = result.chosen
    assert cache.perplexity <= neighbors.perplexity <= result.without
    assert scored(run, data, [store]).perplexity == pytest.approx(neighbors.perplexity)
    both = scored(run, data, [store, "cache"])
    assert both.perplexity == pytest.approx(cache.perplexity)
    assert both.protocol.memory == (neighbors.name, cache.name)
    draw_windows(result, tmp_path / "windows.svg")
    assert (tmp_path / "windows.svg").stat().st_size > 1000


def test_ignores_settings_tuned_for_other_weights(run, data, lm, tmp_path):
    result = tune(run, data, ["cache:50"], options=ScoringOptions(device="cpu"))
    (chosen,) = result.chosen
    assert open_memories([chosen.name], run, "cpu").names == (chosen.name,)
    other = load_run(on_disk(loaded(data, overrides=["training.seed=5"]), tmp_path / "other"))
    (tmp_path / "other" / CACHE_FILE).write_bytes((tmp_path / "run" / CACHE_FILE).read_bytes())
    assert open_memories(["cache"], run, "cpu").names[0].startswith("cache:50,")
    assert open_memories(["cache"], other, "cpu").names[0].startswith("cache:2000,weight=0.15")


def test_does_not_tune_on_test_or_on_the_text_of_the_store(run, data, tmp_path):
    with pytest.raises(ValueError, match="split=test: tuning on test"):
        tune(run, data, ["cache"], split="test")
    with pytest.raises(ValueError, match="memory=cache:30: cache is given twice"):
        tune(run, data, ["cache:30", "cache:50"])
    build(run, data, tmp_path / "store", max_keys=100)
    with pytest.raises(ValueError, match="split=train: .* was built from this text"):
        tune(run, data, [str(tmp_path / "store")], split="train")


def test_resets_at_headings_of_a_text(tmp_path):
    lines = ["= A =", "a b c a b c", "= = S = =", "c b a", "= B =", "a b c a"]
    texts = {split: [str(tmp_path / f"{split}.txt")] for split in ("train", "valid")}
    for (path,) in texts.values():
        Path(path).write_text("\n".join(lines) + "\n")
    data = prepare(tmp_path / "data", texts, Options(min_count=1))
    run = loaded(data).run
    scores = scored(run, data, ["cache,weight=0.2,temperature=0.1,reset=heading"])
    ends = np.flatnonzero(data.tokens("valid").ids == 2)
    expected = reference(
        run,
        data,
        scores.protocol.blocks,
        weight=0.2,
        temperature=0.1,
        begins=(ends[0] + 1, ends[4] + 1),
    )
    np.testing.assert_allclose(scores.nll, expected, rtol=1e-6, atol=2e-6)
