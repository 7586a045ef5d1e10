"""A loaded model with memories: score, generate, advance and next words agree with each other."""

import numpy as np
import pytest
import torch
from loaded_models import loaded, on_disk
from small_data import make_folder, sentences

import zipflm
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.language.decoding import SamplingOptions
from zipflm.language.engine import scored_lines
from zipflm.language.generation import Writer
from zipflm.language.incremental import advance
from zipflm.language.rescoring import PrefixSharingScorer
from zipflm.memory.building import build
from zipflm.runs.load import load_run

CACHE = "cache:40,weight=0.3,temperature=0.2"
TEXT = "\n".join(sentences(3, 30)) + "\n"


@pytest.fixture(scope="module", params=["ADP-T", "BPE", "CNN"])
def models(request, tmp_path_factory):
    """A run on disk and its store, and the model with both memories."""
    root = tmp_path_factory.mktemp(request.param)
    data = make_folder(root, "data", **({"bpe": 40} if request.param == "BPE" else {}))
    path = on_disk(loaded(data, request.param), root / "run")
    build(load_run(path), data, root / "store", max_keys=300, dtype="float32")
    memory = [f"{root / 'store'},k=20,weight=0.2,temperature=0.1", CACHE]
    return path, memory, zipflm.load(path, device="cpu", memory=memory, block=400)


def test_score_equals_evaluate(models, tmp_path):
    path, memory, lm = models
    (tmp_path / "text.txt").write_text(TEXT)
    options = ScoringOptions(memory=memory, device="cpu", block=400, break_mode="none")
    found = evaluate(path, text=str(tmp_path / "text.txt"), options=options)
    scored = lm.score(TEXT)
    np.testing.assert_allclose(scored.nll, found.scores.words(), rtol=1e-5, atol=1e-5)
    assert scored.protocol.memory == found.scores.protocol.memory
    assert scored.perplexity != zipflm.load(path, device="cpu", block=400).perplexity(TEXT)


def test_documents_do_not_see_each_other_whatever_their_number(models):
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
def test_generated_words_have_the_scores_that_score_gives(models, block):
    path, memory, _ = models
    lm = zipflm.load(path, device="cpu", memory=memory, block=block)
    prompt, options = TEXT.splitlines()[0], SamplingOptions(max_words=20, lines=3, seed=4)
    writer, before = Writer(lm.engine, lm.reader, prompt, options, 3), lm.reader.prefix(prompt)
    for text, row in zip(writer.all(), writer._rows, strict=True):
        # As ids: a word in pieces may be written in others than it is read in.
        ((logprob, _),) = advance(lm.engine, [lm.start(prompt)], [row.ids])
        assert text.logprob == pytest.approx(logprob, rel=1e-4)
        if block == 400:
            (nll,) = lm.engine.nll([np.append(before, row.ids)], skip=len(before))
            assert text.logprob == pytest.approx(-nll.sum(), rel=1e-4)


def test_hypotheses_have_the_scores_of_their_texts(models):
    _, _, lm = models
    texts = [f"ba be bila {word}" for word in ("ba", "be", "ka", "bila bila")]
    (found,) = PrefixSharingScorer(lm.engine, lambda text: lm.reader.line(text).ids).log_probs_of(
        [texts]
    )
    assert found == pytest.approx([each.logprob for each in lm.score(texts)], rel=1e-5)


def test_log_probs_of_all_words_sum_to_one_and_hold_the_next_words(models):
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


def test_lines_that_follow_each_other_share_a_cache(models):
    _, _, lm = models
    lines = [lm.reader.line(line) for line in TEXT.splitlines()]
    blocks = lm.engine.blocks
    for prefix in (np.zeros(0, dtype=np.int64), lm.reader.prefix("ba\n")):
        groups = scored_lines(lm.engine, lines, prefix, blocks)
        nll = np.concatenate([each.nll for group in groups for each in group])
        (whole,) = lm.engine.nll([np.concatenate([prefix, *(line.ids for line in lines)])])
        np.testing.assert_allclose(nll, whole[len(prefix) :], rtol=1e-4, atol=1e-4)
