import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import LargestTensor

from zipflm.config import (
    AdaptiveInput,
    AdaptiveOutput,
    Blocks,
    ModelConfig,
    Tie,
    TransformerDecoder,
)
from zipflm.data.batches import Batches
from zipflm.data.token_file import TokenArray
from zipflm.evaluation.progress import on_progress, progress_label
from zipflm.evaluation.scoring import score
from zipflm.model.language_model import LanguageModel

BANDS = {"cutoffs": (40, 120), "dim": 16}
SMALL = ModelConfig(
    vocab_size=300,
    input=AdaptiveInput(**BANDS),
    decoder=TransformerDecoder(dim=16, num_layers=1, num_heads=2, ffn_dim=32),
    output=AdaptiveOutput(**BANDS),
    tie=Tie.PROJECTIONS,
)
ALL_WORDS = np.ones(SMALL.vocab_size, dtype=np.bool_)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LanguageModel(SMALL).eval()


def text(lengths, seed=0):
    random = np.random.default_rng(seed)
    lines = [[*random.integers(4, SMALL.vocab_size, length), 2] for length in lengths]
    return TokenArray.of(lines)


def cut(tokens, **options):
    options = {"break_mode": "none", "block": 16, "context": 0} | options
    blocks = Blocks(**{name: options.pop(name) for name in ("break_mode", "block", "context")})
    return Batches(tokens, blocks, **{"max_tokens": 64, "shuffle": False} | options)


def scored(model, tokens, **options):
    return score(model, cut(tokens, **options), device="cpu", ends_word=ALL_WORDS)


def nll_in_one_pass(model, tokens):
    ids = torch.from_numpy(tokens.ids)
    words = torch.cat([torch.tensor([2]), ids[:-1]])
    with torch.no_grad():
        return model.nll(words[None], ids[None])[0].numpy()


def test_one_block_is_one_pass(model):
    tokens = text([5, 0, 9])
    scores = scored(model, tokens, block=64)
    np.testing.assert_array_equal(scores.targets, tokens.ids)
    np.testing.assert_allclose(scores.nll, nll_in_one_pass(model, tokens), atol=1e-5)


def test_a_window_sees_exactly_its_context(model):
    tokens = text([11] * 6)
    scores = scored(model, tokens, block=16, context=12)
    for start in range(16, len(tokens), 4):
        window = slice(start - 12, start + 4)
        words = torch.from_numpy(tokens.ids[start - 13 : start + 3])[None]
        targets = torch.from_numpy(tokens.ids[window])[None]
        with torch.no_grad():
            nll = model.nll(words[:, : targets.shape[1]], targets)[0, 12:]
        np.testing.assert_allclose(scores.nll[start : start + 4], nll, atol=1e-5)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    break_mode=st.sampled_from(["none", "complete", "sentence"]),
    block=st.integers(1, 24),
    data=st.data(),
)
def test_scores_every_target_once_in_text_order(model, lengths, break_mode, block, data):
    context = data.draw(st.integers(0, block - 1))
    tokens = text(lengths)
    batches = cut(tokens, break_mode=break_mode, block=block, context=context)
    scores = score(model, batches, device="cpu", ends_word=ALL_WORDS)
    np.testing.assert_array_equal(scores.targets, tokens.ids)
    assert (scores.nll > 0).all()
    assert (scores.protocol.tokens, scores.protocol.eos) == (len(tokens), len(lengths))
    assert scores.protocol.positions >= len(tokens)
    # The batch a window comes in does not matter.
    alone = cut(tokens, break_mode=break_mode, block=block, context=context, max_tokens=block)
    again = score(model, alone, device="cpu", ends_word=ALL_WORDS)
    np.testing.assert_allclose(scores.nll, again.nll, atol=1e-4)


def test_sub_words_merge_across_blocks(model):
    tokens = TokenArray.of([[*range(100, 130), 2]])
    ends_word = ALL_WORDS.copy()
    ends_word[tokens.ids[15]] = False  # the last token of the first block
    batches = cut(tokens)
    merged = score(model, batches, device="cpu", ends_word=ends_word)
    plain = scored(model, tokens)
    assert (merged.protocol.unit, plain.protocol.unit) == ("bpe", "word")
    assert merged.protocol.words == len(tokens) - 1
    assert merged.words()[15] == pytest.approx(float(plain.nll[15]) + float(plain.nll[16]))
    assert merged.words().sum() == pytest.approx(plain.nll_sum)


def test_only_scored_tokens_reach_the_output_layer(model, monkeypatch):
    rows = []
    nll = model.output.nll

    def counted(hidden, targets, scored=None):
        rows.append(len(hidden))
        return nll(hidden, targets, scored)

    monkeypatch.setattr(model.output, "nll", counted)
    tokens = text([15] * 20)
    scores = scored(model, tokens, block=16, context=12)
    assert sum(rows) == len(tokens)
    assert scores.protocol.positions > 3 * len(tokens)
    # Several windows go through the model at once.
    assert len(rows) < len(tokens) / 4 / 3


def test_memory_is_bounded_by_the_batch(model):
    largest = []
    for num_lines in (100, 300):
        with LargestTensor() as watch:
            scored(model, text([15] * num_lines), block=16, context=8, max_tokens=64)
        largest.append(watch.elements)
    assert largest[0] == largest[1]
    assert 0 < largest[0] < 300 * SMALL.vocab_size


def test_memory_per_token_is_little_more_than_its_score(model):
    tokens = text([15] * 6000)
    score(model, cut(text([15])), device="cpu", ends_word=ALL_WORDS)  # one-time allocations
    plain, merged = ALL_WORDS, ALL_WORDS.copy()
    merged[7] = False
    for ends_word in (plain, merged):
        tracemalloc.start()
        # Few batches, because tracing slows Python down.
        batches = cut(tokens, max_tokens=256)
        scores = score(model, batches, device="cpu", ends_word=ends_word)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert np.shares_memory(scores.targets, tokens.ids)
        # With a margin for allocations that do not grow with the text.
        assert held < 7 * len(tokens)
        assert peak < 9 * len(tokens)


def test_rejects_a_diverged_model():
    model = LanguageModel(SMALL)
    model.decoder.layers[0].ffn_out.bias.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="6 of 6 tokens have no finite log-probability"):
        scored(model, text([5]))


def test_rejects_a_part_of_the_batches(model):
    batches = cut(text([9] * 20), rank=0, world_size=2)
    with pytest.raises(ValueError, match="do not contain every token once"):
        score(model, batches, device="cpu", ends_word=ALL_WORDS)


def test_low_precision_is_close(model):
    tokens = text([9] * 5)
    low = score(model, cut(tokens), device="cpu", ends_word=ALL_WORDS, precision="bfloat16")
    assert low.protocol.dtype == "bfloat16"
    assert low.perplexity == pytest.approx(scored(model, tokens).perplexity, rel=0.05)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_numbers():
    torch.manual_seed(0)
    model, tokens = LanguageModel(SMALL), text([15] * 50)
    cpu = scored(model, tokens, block=32, context=24)
    gpu = score(model, cut(tokens, block=32, context=24), device="cuda", ends_word=ALL_WORDS)
    np.testing.assert_allclose(cpu.nll, gpu.nll, atol=1e-3)
    assert not any(weights.is_inference() for weights in model.parameters())


def test_reports_progress_for_every_token_once(model):
    tokens, events = text([5, 0, 9, 30]), []
    with on_progress(lambda *event: events.append(event)), progress_label("scoring x"):
        scored(model, tokens, block=8, context=3)
    assert {(label, total) for label, _, total in events} == {("scoring x", len(tokens.ids))}
    assert sum(done for _, done, _ in events) == len(tokens.ids)
