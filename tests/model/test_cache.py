from dataclasses import replace

import pytest
import torch
from numerics import assert_close

from zipflm import LanguageModel, preset
from zipflm.config import CharacterInput, TransformerDecoder
from zipflm.model.decoders.transformer import Transformer
from zipflm.presets import FACTORIZATIONS
from zipflm.presets.recipes import resolve

PLAIN = TransformerDecoder(dim=32, num_layers=2, num_heads=4, ffn_dim=64)
DECODERS = {
    "sinusoidal": PLAIN,
    "rotary": replace(PLAIN, positions="rotary"),
    "normed queries and keys": replace(PLAIN, positions="rotary", qk_norm=True),
    "rms norm": replace(PLAIN, norm="rms", bias=False),
    "final norm": replace(PLAIN, final_norm=True),
    "modern": replace(
        PLAIN, positions="rotary", qk_norm=True, activation="relu_squared", norm="rms", bias=False
    ),
    "residuals and gates": replace(
        PLAIN, num_layers=3, input_residual=True, value_residual=True, attention_gate=True
    ),
}
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-10)]


@pytest.fixture(autouse=True)
def _inference(one_thread):
    with torch.no_grad():
        yield


def in_pieces(module, inputs, cache, sizes):
    return torch.cat([module(piece, cache) for piece in inputs.split(sizes, dim=1)], dim=1)


def a_decoder(name="modern", dtype=torch.float32, rows=3, capacity=12):
    decoder = Transformer(DECODERS[name]).to(dtype).eval()
    return decoder, decoder.new_state(rows, capacity)


@pytest.mark.parametrize("sizes", [[1] * 12, [12], [5, 7], [1, 4, 1, 6], [6, 1, 1, 4]])
@pytest.mark.parametrize(("dtype", "within"), PRECISIONS)
@pytest.mark.parametrize("name", DECODERS)
def test_pieces_of_any_size_give_the_same_vectors(name, dtype, within, sizes):
    decoder, cache = a_decoder(name, dtype)
    words = torch.randn(3, 12, 32, dtype=dtype)
    hidden = in_pieces(lambda *args: decoder(*args)[0], words, cache, sizes)
    assert_close(hidden, decoder(words)[0], within)
    assert cache.lengths == [12] * 3


def models():
    for factorization in FACTORIZATIONS:
        yield preset("tiny", factorization)
    yield resolve("tiny/ADP-T", "modern", [], 4000)


@pytest.mark.parametrize(("dtype", "within"), PRECISIONS)
@pytest.mark.parametrize("config", list(models()), ids=lambda config: config.name)
def test_cached_scores_match_for_every_factorization(config, dtype, within):
    spellings = torch.randint(257, (config.vocab_size, 50), dtype=torch.int16)
    needs = isinstance(config.input, CharacterInput)
    model = LanguageModel(config, spellings if needs else None).to(dtype).eval()
    words = torch.randint(config.vocab_size, (2, 7))
    cache = model.new_cache(2, 7)
    hidden = in_pieces(model, words, cache, [3, 1, 1, 2])
    assert_close(hidden, model(words), within)
    assert_close(model.output.log_probs(hidden), model.log_probs(words), within)


def test_cache_works_under_autocast():
    model = LanguageModel(resolve("tiny/ADP-T", "modern", [], 4000)).eval()
    words = torch.randint(4000, (2, 6))
    with torch.autocast("cpu", torch.bfloat16):
        cache = model.new_cache(2, 7)
        hidden = in_pieces(model, words, cache, [2, 1, 3])
        whole = model(words)
    assert cache.keys_LBHCK.dtype == hidden.dtype == torch.bfloat16
    assert_close(hidden.float(), whole.float(), 0.05)
    with pytest.raises(ValueError, match="dtype is torch.bfloat16 but the model computes in tor"):
        model(words[:, :1], cache)


def test_repeated_rows_are_independent():
    decoder, cache = a_decoder(rows=2)
    prefix, continuations = torch.randn(2, 4, 32), torch.randn(6, 5, 32)
    decoder(prefix, cache)
    repeated = cache.select([0, 0, 0, 1, 1, 1])
    assert (repeated.lengths, repeated.capacity) == ([4] * 6, 12)
    whole = decoder(torch.cat([prefix.repeat_interleave(3, 0), continuations], dim=1))[0]
    assert_close(decoder(continuations, repeated)[0], whole[:, 4:], 1e-5)
    assert cache.lengths == [4] * 2


def test_right_padding_of_continuations_changes_nothing():
    decoder, cache = a_decoder(rows=1)
    prefix, longer = torch.randn(1, 4, 32), torch.randn(1, 5, 32)
    shorter = torch.cat([longer[:, :2] + 1, torch.zeros(1, 3, 32)], dim=1)
    decoder(prefix, cache)
    together = decoder(torch.cat([longer, shorter]), cache.select([0, 0]))[0]
    alone = decoder(torch.cat([prefix, shorter[:, :2]], dim=1))[0][:, 4:]
    assert_close(together[1:, :2], alone, 1e-5)


def test_select_reorders_rows():
    decoder, cache = a_decoder()
    prefix, step = torch.randn(3, 4, 32), torch.randn(4, 1, 32)
    decoder(prefix, cache)
    rows = [2, 0, 0, 1]
    whole = decoder(torch.cat([prefix[rows], step], dim=1))[0]
    assert_close(decoder(step, cache.select(rows))[0], whole[:, 4:], 1e-5)


def test_selected_rows_are_copies():
    decoder, cache = a_decoder()
    prefix, steps = torch.randn(3, 4, 32), torch.randn(2, 3, 1, 32)
    decoder(prefix, cache)
    copy = cache.select([0, 1, 2])
    decoder(steps[0], copy)
    whole = decoder(torch.cat([prefix, steps[1]], dim=1))[0]
    assert_close(decoder(steps[1], cache)[0], whole[:, 4:], 1e-5)


def test_restore_removes_later_words():
    decoder, cache = a_decoder()
    words = torch.randn(3, 8, 32)
    decoder(words[:, :3], cache)
    snapshot = cache.snapshot()
    decoder(words[:, 3:], cache)
    cache.restore(snapshot)
    other = torch.randn(3, 9, 32)
    whole = decoder(torch.cat([words[:, :3], other], dim=1))[0]
    assert_close(decoder(other, cache)[0], whole[:, 3:], 1e-5)


def test_steps_do_not_reallocate():
    decoder, cache = a_decoder()
    before = cache.keys_LBHCK.data_ptr(), cache.values_LBHCK.data_ptr()
    for _ in range(12):
        decoder(torch.randn(3, 1, 32), cache)
    assert (cache.keys_LBHCK.data_ptr(), cache.values_LBHCK.data_ptr()) == before


def test_rejects_words_beyond_capacity_without_changes():
    decoder, cache = a_decoder()
    words = torch.randn(3, 12, 32)
    decoder(words[:, :10], cache)
    with pytest.raises(ValueError, match="3 more exceed capacity=12 of a cache that holds 10"):
        decoder(torch.randn(3, 3, 32), cache)
    assert_close(decoder(words[:, 10:], cache)[0], decoder(words)[0][:, 10:], 1e-5)


def test_rejects_wrong_number_of_rows():
    decoder, cache = a_decoder()
    with pytest.raises(ValueError, match="2 rows, but the cache has 3"):
        decoder(torch.randn(2, 1, 32), cache)


def test_rejects_gradients():
    decoder, cache = a_decoder()
    with torch.enable_grad(), pytest.raises(ValueError, match="not support gradients.*no_grad"):
        decoder(torch.randn(3, 1, 32, requires_grad=True), cache)
