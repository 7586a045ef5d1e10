from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zipflm.config import Blocks
from zipflm.data.vocabulary import END, PAD
from zipflm.language.rescoring import PrefixSharingScorer
from zipflm.model.language_model import LanguageModel
from zipflm.presets import preset
from zipflm.settings import override

SIZES = ["decoder.num_layers=2", "vocab_size=64", "decoder.dim=16", "decoder.ffn_dim=32"]
BANDS = ["input.cutoffs=16", "output.cutoffs=16", "input.dim=16", "output.dim=16"]


@pytest.fixture(autouse=True)
def _one_thread():
    """One thread is faster for models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def new_model(*overrides, name="ADP-T"):
    torch.manual_seed(1)
    bands = BANDS if name.startswith("ADP") else []
    model = LanguageModel(override(preset("tiny", name), [*SIZES, *bands, *overrides])).eval()
    for parameter in model.parameters():  # large enough for words and positions to matter
        parameter.data = torch.randn_like(parameter) * 0.5
    return model


@dataclass
class Engine:
    """A model that counts the positions passed to its decoder."""

    model: LanguageModel
    blocks: Blocks = Blocks(break_mode="none", block=32, context=16)
    batch_tokens: int = 64
    device: torch.device = torch.device("cpu")
    memories: None = None
    positions: int = 0
    passes: list[tuple[int, int]] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)
    """Lengths of documents scored without prefix sharing."""

    def __post_init__(self):
        self.model.decoder.register_forward_pre_hook(self._count)

    def _count(self, decoder, arguments):
        self.passes.append(tuple(arguments[0].shape[:2]))
        self.positions += arguments[0].shape[0] * arguments[0].shape[1]

    @torch.inference_mode()
    def nll(self, documents):
        self.alone += map(len, documents)
        return nll_of(self.model, documents)


def nll_of(model, documents):
    if not documents:
        return []
    rows = [torch.from_numpy(np.append(END, ids)) for ids in documents]
    words = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    nll = model.nll(words[:, :-1], words[:, 1:]).numpy()
    return [row[: len(ids)] for row, ids in zip(nll, documents, strict=True)]


def ids_of(text):
    return np.array([*map(int, text.split()), END])


@torch.inference_mode()
def expected(model, utterances):
    values = iter(nll_of(model, [ids_of(text) for texts in utterances for text in texts]))
    return [[-next(values).sum() for _ in texts] for texts in utterances]


def assert_equal(found, wanted):
    assert [len(texts) for texts in found] == [len(texts) for texts in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


UTTERANCES = [
    ["5 6 7 8 9", "5 6 7 8 10 11", "5 6 7", "5 6 7 20 21 22 23"],
    ["40 41 42", "40 41 42 43"],
    ["9"],
    ["8 8 8 8", "8 8 8 9", "8 8 8 8 8 8"],
]


@pytest.mark.parametrize("name", ["ADP-T", "SM", "ADP", "SM-T"])
def test_matches_scores_without_sharing(name):
    model = new_model(name=name)
    engine = Engine(model)
    found = PrefixSharingScorer(engine, ids_of).log_probs_of(UTTERANCES)
    assert_equal(found, expected(model, UTTERANCES))
    assert engine.alone == [2]  # the utterance of one hypothesis


def test_rotary_positions_continue_after_the_prefix():
    model = new_model("decoder.positions=rotary")
    found = PrefixSharingScorer(Engine(model), ids_of).log_probs_of(UTTERANCES)
    assert_equal(found, expected(model, UTTERANCES))


hypotheses = st.lists(st.integers(4, 6).map(str), max_size=8).map(" ".join)


ENGINE = Engine(new_model())


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.lists(hypotheses, min_size=1, max_size=5, unique=True), max_size=3),
    st.sampled_from([32, 40, 200]),
)
def test_matches_scores_for_any_lists(utterances, batch_tokens):
    """Includes empty hypotheses, prefixes of others, and lists without a common prefix."""
    ENGINE.batch_tokens = batch_tokens
    found = PrefixSharingScorer(ENGINE, ids_of).log_probs_of(utterances)
    assert_equal(found, expected(ENGINE.model, utterances))


def test_reads_shared_words_once():
    texts = [f"5 6 7 8 9 10 11 {last}" for last in range(20, 30)]
    engine, apart = Engine(new_model()), Engine(new_model())
    PrefixSharingScorer(engine, ids_of).log_probs_of([texts])
    apart.nll([ids_of(text) for text in texts])
    # `</s>` and seven words once, then one word for each of ten; not nine for each.
    assert engine.positions == 8 + 10
    assert apart.positions == 10 * 9


def test_batches_utterances_with_equal_prefix_lengths():
    utterances = [[f"{first} 6 7 {last}" for last in (20, 21)] for first in (4, 5, 6, 7)]
    engine = Engine(new_model())
    PrefixSharingScorer(engine, ids_of).log_probs_of(utterances)
    assert engine.passes == [(4, 4), (8, 1)]


def test_short_prefixes_are_not_shared():
    utterances = [["5 6 7 8 9 10", "11 12 13 14 15 16"], ["20 21 22 23 24", "25 26 27 28 29"]]
    engine = Engine(new_model())
    found = PrefixSharingScorer(engine, ids_of).log_probs_of(utterances)
    assert engine.alone == [7, 7, 6, 6]
    assert_equal(found, expected(engine.model, utterances))


def test_batches_respect_the_token_limit():
    texts = [f"5 6 7 8 {a} {b}" for a in range(10, 20) for b in range(20, 24)]
    model = new_model()
    engine = Engine(model, batch_tokens=64)
    found = PrefixSharingScorer(engine, ids_of).log_probs_of([texts, texts[:7]])
    # 7 positions per row, including the cache.
    assert max(rows for rows, _ in engine.passes) <= 64 // 7
    assert_equal(found, expected(model, [texts, texts[:7]]))


def test_long_hypotheses_are_scored_alone():
    long = " ".join(["7"] * 40)
    short = " ".join(["7"] * 20)
    texts = [f"{long} 8", f"{long} 9", f"{short} 8", f"{short} 9", " ".join(["7"] * 31)]
    engine = Engine(new_model())
    found = PrefixSharingScorer(engine, ids_of).log_probs_of([texts])
    assert engine.alone == [42, 42]  # 31 words and their end just fit
    assert_equal(found, expected(engine.model, [texts]))


def test_scores_no_utterances():
    assert PrefixSharingScorer(ENGINE, ids_of).log_probs_of([]) == []


def test_rejects_nan():
    model = new_model()
    next(model.parameters()).data.fill_(float("nan"))
    with pytest.raises(ValueError, match="are NaN or infinite"):
        PrefixSharingScorer(Engine(model), ids_of).log_probs_of(UTTERANCES[:1])
