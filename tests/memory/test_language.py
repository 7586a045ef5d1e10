"""Loaded models with memories: score, generate, advance and next words agree."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from loaded_models import loaded, on_disk
from small_data import make_folder, sentences

import zipflm
from zipflm.data.bpe import join
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.language.decoding import SamplingOptions, TextGenerator
from zipflm.language.engine import scored_lines
from zipflm.language.incremental import advance
from zipflm.language.next_words import most_likely_words_at
from zipflm.memory.building import build
from zipflm.runs.load import load_run

CACHE = "cache:40,weight=0.3,temperature=0.2"
TEXT = "\n".join(sentences(3, 30)) + "\n"


@pytest.fixture(scope="module", params=["ADP-T", "BPE", "CNN"])
def models(request, tmp_path_factory):
    """A run, its memories, and the loaded model."""
    root = tmp_path_factory.mktemp(request.param)
    data = make_folder(root, "data", **({"bpe": 40} if request.param == "BPE" else {}))
    path = on_disk(loaded(data, request.param), root / "run")
    build(load_run(path), data, root / "store", max_keys=300, dtype="float32")
    memory = [f"{root / 'store'},k=20,weight=0.2,temperature=0.1", CACHE]
    return path, memory, zipflm.load(path, device="cpu", memory=memory, block=400)


@pytest.fixture(scope="module")
def adp(tmp_path_factory):
    """Loads a word model with the given memories."""
    root = tmp_path_factory.mktemp("adp")
    path = on_disk(loaded(make_folder(root, "data")), root / "run")
    return lambda memory: zipflm.load(path, device="cpu", memory=memory)


def test_score_equals_evaluate(models, tmp_path):
    path, memory, lm = models
    (tmp_path / "text.txt").write_text(TEXT)
    options = ScoringOptions(memory=memory, device="cpu", block=400, break_mode="none")
    found = evaluate(path, text=str(tmp_path / "text.txt"), options=options)
    scored = lm.score(TEXT)
    np.testing.assert_allclose(scored.nll, found.scores.words(), rtol=1e-5, atol=1e-5)
    assert scored.protocol.memory == found.scores.protocol.memory
    assert scored.perplexity != zipflm.load(path, device="cpu", block=400).perplexity(TEXT)


def test_documents_do_not_see_each_other(models):
    _, _, lm = models
    texts = [*TEXT.splitlines(), TEXT, TEXT * 3]
    alone = [lm.score(text).logprob for text in texts]
    together = [each.logprob for each in lm.score(texts)]
    np.testing.assert_allclose(alone, together, rtol=1e-5)


def test_a_long_document_in_parts_has_one_cache(models):
    path, memory, _ = models
    lm = zipflm.load(path, device="cpu", memory=memory[1:], block=32, context=8)
    both = [each.nll for each in lm.score([TEXT, TEXT + TEXT])]
    np.testing.assert_allclose(both[0], both[1][: len(both[0])], rtol=1e-4, atol=1e-4)


def test_a_prefix_is_remembered(models):
    _, _, lm = models
    first, second = TEXT.splitlines()[:2]
    whole = lm.score(f"{first}\n{second}\n")
    after = lm.score(second, prefix=f"{first}\n")
    np.testing.assert_allclose(after.nll, whole.nll[-len(after) :], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [400, 16])
def test_generated_words_have_the_scores_of_score(models, block):
    path, memory, _ = models
    lm = zipflm.load(path, device="cpu", memory=memory, block=block)
    prompt, options = TEXT.splitlines()[0], SamplingOptions(max_words=20, lines=3, seed=4)
    generator, before = (
        TextGenerator(lm.engine, lm.reader, prompt, options, 3),
        lm.reader.prefix(prompt),
    )
    for text, row in zip(generator.all(), generator._rows, strict=True):
        # As ids, because a generated word can have other pieces than the encoded one.
        ((logprob, _),) = advance(lm.engine, [lm.start(prompt)], [row.ids])
        assert text.logprob == pytest.approx(logprob, rel=1e-4)
        if block == 400:
            (nll,) = lm.engine.nll([np.append(before, row.ids)], skip=len(before))
            assert text.logprob == pytest.approx(-nll.sum(), rel=1e-4)


def test_log_probs_sum_to_one_and_agree_with_next_words(models):
    _, _, lm = models
    prefixes = ["", *TEXT.splitlines()[:3]]
    log_probs = lm.log_probs(prefixes)
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(4), atol=1e-5, rtol=0)
    for prefix in prefixes:
        best = lm.next_words(prefix, 3)
        for word in best:
            if word.word not in ("</s>", "<unk>"):
                (scored, *_) = lm.score(word.word, prefix=prefix).words
                assert scored.logprob == pytest.approx(word.logprob, abs=1e-4)


def test_consecutive_lines_share_a_cache(models):
    _, _, lm = models
    lines = [lm.reader.line(line) for line in TEXT.splitlines()]
    blocks = replace(lm.engine.blocks, context=8)
    for prefix in (np.zeros(0, dtype=np.int64), lm.reader.prefix("ba\n")):
        groups = scored_lines(lm.engine, lines, prefix, blocks)
        nll = np.concatenate([each.nll for group in groups for each in group])
        (whole,) = lm.engine.nll([np.concatenate([prefix, *(line.ids for line in lines)])])
        np.testing.assert_allclose(nll, whole[len(prefix) :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("break_mode", ["none", "complete", "sentence"])
@pytest.mark.parametrize("reset", ["none", "line", "blank"])
def test_running_lines_do_not_depend_on_the_batch_size(adp, break_mode, reset):
    lm = adp([f"cache,weight=0.3,reset={reset}"])
    lines = [lm.reader.line(line) for line in TEXT.replace("ba", "\n").splitlines()]
    blocks = replace(lm.engine.blocks, break_mode=break_mode, block=16)
    prefix, found = lm.reader.prefix("ba de ka bila\n"), []
    for batch_tokens in (16, 50, 100_000):
        engine = replace(lm.engine, batch_tokens=batch_tokens)
        groups = scored_lines(engine, lines, prefix, blocks)
        found.append(np.concatenate([each.nll for group in groups for each in group]))
    np.testing.assert_allclose(found[0], found[2], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-5, atol=1e-5)


def test_a_prefix_does_not_shift_the_blocks_of_running_lines(adp):
    nll = []
    for memory in ([], ["cache:50,weight=0"]):
        lm = adp(memory)
        lines = [lm.reader.line(line) for line in TEXT.splitlines()]
        blocks = replace(lm.engine.blocks, block=16)
        groups = scored_lines(lm.engine, lines, lm.reader.prefix("ba de ka"), blocks)
        nll.append(np.concatenate([each.nll for group in groups for each in group]))
    np.testing.assert_allclose(*nll, rtol=1e-5, atol=1e-5)


def test_a_prompt_longer_than_the_block_is_remembered(models):
    path, _, _ = models
    lm = zipflm.load(path, device="cpu", memory="cache,weight=0.9", block=16, context=15)
    prefix = "ba ba ba ba\n" + "de ka bila\n" * 12
    logprob, _ = lm.advance(lm.start(prefix), "ba")
    assert dict(lm.next_words(prefix, 40))["ba"] == pytest.approx(logprob, abs=1e-3)
    # The context of earlier words is shorter than in `score`.
    expected = lm.score("ba", prefix=prefix).words[0].logprob
    assert logprob == pytest.approx(expected, abs=0.3)


def test_states_keep_only_the_window_of_the_cache(adp):
    lm = adp(["cache:20"])
    state, states = lm.start(), []
    for word in ["ba", "de", "ka"] * 30:
        _, state = lm.advance(state, word)
        states.append(weakref.ref(state._cache) if state._cache is not None else lambda: None)
    assert sum(each() is not None for each in states) <= 2
    assert [len(part) for part in state._past] == [20, 20]


def test_alternatives_agree_with_scores_of_words_in_pieces(tmp_path):
    data = make_folder(tmp_path, "data", bpe=40)
    path = on_disk(loaded(data, "BPE"), tmp_path / "run")
    lm = zipflm.load(path, device="cpu", memory="cache,weight=0.5", block=16, context=8)
    text = lm.reader.prefix(TEXT)[:80]
    (nll,) = lm.engine.nll([text])
    ends = np.flatnonzero(lm.reader.ends_word[text]) + 1
    begins = np.append(0, ends[:-1])
    whole = begins // 8 == (ends - 1) // 8  # within one block
    begins, ends = begins[whole], ends[whole]
    found = most_likely_words_at(lm.engine, lm.reader, text, begins, 60)
    logprobs = {}
    for begin, end, likely in zip(begins, ends, found, strict=True):
        word = join([lm.reader.vocabulary.words[id] for id in text[begin:end]])
        if word in dict(likely):
            logprobs[begin] = dict(likely)[word], -nll[begin:end].sum()
    assert len(logprobs) > 10
    np.testing.assert_allclose(*zip(*logprobs.values(), strict=True), atol=1e-3)
