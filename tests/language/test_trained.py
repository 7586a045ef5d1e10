"""`zipflm.load`: scores and next words agree with the model."""

import math
import pickle
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import child_code
import numpy as np
import pytest
import torch
import training_runs
from loaded_models import loaded

import zipflm
from zipflm.data.vocabulary import END, UNKNOWN
from zipflm.evaluation.evaluate import ScoringOptions, evaluate
from zipflm.language.model import TrainedModel
from zipflm.runs.load import UnseenWords, load_run
from zipflm.studies.analyze import analyze
from zipflm.training.trainer import train

TEXT = "ba de ba fila\nsoro ba\n"
PREFIXES = ["ba de", "ba", "", "soro\n", "ba de ba fila nan gu ba"]


def ids_of(lm, text):
    return lm.reader.text(text).ids


def test_scores_match_the_model(lm):
    text = lm.score(TEXT)
    ids = torch.from_numpy(ids_of(lm, TEXT))
    before = torch.cat([torch.tensor([END]), ids[:-1]])
    with torch.no_grad():
        expected = -lm.model.nll(before[None], ids[None])[0].double()
    assert text.logprob == pytest.approx(float(expected.sum()), abs=1e-4)
    assert [word.word for word in text.words] == "ba de ba fila </s> soro ba </s>".split()
    of_words = np.add.reduceat(expected.numpy(), text.encoded.starts)
    assert [word.logprob for word in text.words] == pytest.approx(of_words.tolist(), abs=1e-5)


def test_scores_match_the_distribution(lm):
    words = lm.score("ba de ba").words
    log_probs = lm.log_probs(["", "ba", "ba de", "ba de ba"])
    assert lm.log_probs([]).shape == log_probs[:0].shape
    assert log_probs.exp().sum(1).tolist() == pytest.approx([1] * 4, abs=1e-5)
    first = [lm.reader.encoder.ids([word.word])[0][0] for word in words]
    for word, row, token in zip(words, log_probs, first, strict=True):
        if len(lm.reader.encoder.ids([word.word])[0]) == 1:
            assert word.logprob == pytest.approx(float(row[token]), abs=1e-5)


def test_totals_and_protocol(lm):
    text = lm.score(TEXT)
    assert text.logprob == pytest.approx(sum(word.logprob for word in text.words))
    assert text.surprisal == pytest.approx(-text.logprob / math.log(2))
    assert text.perplexity == pytest.approx(math.exp(-text.logprob / 8))
    protocol = text.protocol
    assert (protocol.words, protocol.eos, protocol.unk) == (8, 2, 0)
    assert protocol.tokens == len(text.encoded.ids) == protocol.positions
    assert protocol.unit == lm.run.config.batches.unit


def test_batched_scores_match_single_texts(lm):
    texts = ["ba", TEXT, "de " * 30, "fila soro", "ba"]
    together = lm.score(texts)
    assert [text.text for text in together] == texts
    for text, each in zip(texts, together, strict=True):
        alone = lm.score(text)
        assert each.nll.tolist() == pytest.approx(alone.nll.tolist(), abs=1e-5)


def test_bands_counts_and_unknown_words(adp):
    words = adp.score("ba qqqq").words
    assert [word.is_unknown for word in words] == [False, True, False]
    assert [word.is_end for word in words] == [False, False, True]
    vocabulary, bands = adp.vocabulary, adp.model.output.bands
    for name in vocabulary.words[4:]:
        (word, _) = adp.score(name).words if name.isalpha() else (None, None)
        if word is not None and not word.is_unknown:
            token = vocabulary.id(name)
            assert word.count == vocabulary.counts[token]
            assert bands.edges[word.band] <= token < bands.edges[word.band + 1]


def test_spans(adp):
    text = "  ba\tde \r\nfila"
    words = adp.score(text).words
    assert [text[slice(*word.span)] for word in words] == ["ba", "de", "\r\n", "fila", ""]


def test_prefix_is_context(lm):
    whole, rest = lm.score("ba de fila"), lm.score("fila", prefix="ba de")
    assert [word.word for word in rest.words] == ["fila", "</s>"]
    assert rest.nll.tolist() == pytest.approx(whole.nll[-2:].tolist(), abs=1e-5)
    assert rest.protocol.words == 2


def test_long_texts_are_split_with_context(word_data):
    lm = loaded(word_data, block=8, context=4)
    text = " ".join(["ba", "de", "fila", "soro", "nan"] * 5)
    found = lm.score(text)
    ids = np.concatenate([[END], ids_of(lm, text)])
    expected = []
    for place in range(1, len(ids)):
        start = max((place - 1) // 4 * 4 - 4, 0)  # parts of four after four
        words = torch.from_numpy(ids[start:place])
        with torch.no_grad():
            expected.append(-float(lm.model.log_probs(words[None])[0, -1, ids[place]]))
    assert found.nll.tolist() == pytest.approx(expected, abs=1e-5)
    assert found.protocol.blocks.context == 4
    assert loaded(word_data).engine.blocks.context == 8  # half of the block by default


def test_next_words_match_the_distribution(models):
    for label in ("SM", "ADP-T", "CNN"):
        lm = models[label]
        log_probs = lm.log_probs(PREFIXES)
        for row, found in zip(log_probs, lm.next_words(PREFIXES, 7), strict=True):
            values, ids = row.topk(7)
            assert [word.logprob for word in found] == pytest.approx(values.tolist(), abs=1e-5)
            assert [lm.vocabulary.id(word.word) for word in found] == ids.tolist()


def test_next_words_of_sub_word_models_are_exact(bpe):
    prefix = "ba de"
    found = bpe.next_words(prefix, 40)
    assert [word.logprob for word in found] == sorted((w.logprob for w in found), reverse=True)
    names = {a + b for a in "bdfgklmnps" for b in ("a", "e", "ila", "oro", "u", "an", "i")}
    scores = {
        text.text: text.words[0].logprob
        for text in bpe.score(sorted(names), prefix=prefix)
        if not text.words[0].is_unknown
    }
    last = found[-1].logprob
    for name, logprob in scores.items():
        ours = dict(found).get(name)
        assert ours == pytest.approx(logprob, abs=1e-5) if ours is not None else logprob < last
    assert any(len(bpe.reader.encoder.ids([word.word])[0]) > 1 for word in found)


@pytest.mark.parametrize("k", [0, 10**6, None, 1.5])
def test_rejects_k_outside_the_vocabulary(adp, k):
    with pytest.raises(
        ValueError, match=f"k={k}: must be an integer from 1 to {len(adp.vocabulary)}"
    ):
        adp.next_words("ba", k)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (["ba", ""], "empty"),
        ("a\0b", "NUL at character 1"),
        ("a\ud800", "character 1"),
    ],
)
def test_rejects_invalid_text(adp, text, reason):
    with pytest.raises(ValueError, match=reason):
        adp.score(text)


def test_scores_a_single_line_end(adp):
    assert [word.word for word in adp.score("\n").words] == ["</s>"]


def test_scores_can_be_pickled(lm):
    scored = lm.score("ba de qqqq\nba")
    copy = pickle.loads(pickle.dumps(scored))
    assert copy.words == scored.words and copy.encoded.spans == scored.encoded.spans


def test_to_frame(lm, monkeypatch):
    if find_spec("pandas") is None:
        monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    text = lm.score("ba qqqq\nde")
    frame = text.to_frame()
    assert list(frame["start"]) == [word.span[0] for word in text.words]
    assert list(frame["end"]) == [word.span[1] for word in text.words]
    for name in ("word", "logprob", "surprisal", "band", "count", "is_unknown", "is_end"):
        assert list(frame[name]) == [getattr(word, name) for word in text.words]


def test_to_frame_needs_pandas(adp, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        adp.score("ba").to_frame()


def test_log_probs_needs_a_list(adp):
    with pytest.raises(ValueError, match="must be a list"):
        adp.log_probs("ba")


def test_loads_a_run_folder(run):
    lm = zipflm.load(run, device="cpu")
    assert lm.run.checkpoint.name == "update-00000010"
    assert "update-00000010" in repr(lm)
    assert lm.score("ba de").perplexity > 1
    half = zipflm.load(run, device="cpu", dtype="bfloat16", checkpoint="newest")
    assert half.score("ba").protocol.dtype == "bfloat16"
    assert half.score("ba de").logprob == pytest.approx(lm.score("ba de").logprob, rel=0.05)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "int8"}, "dtype=int8: choose from float32"),
        ({"checkpoint": "7"}, ": 10"),
        ({"block": 4, "context": 4}, "context"),
    ],
)
def test_rejects_invalid_options(run, options, reason):
    with pytest.raises(ValueError, match=reason):
        zipflm.load(run, device="cpu", **options)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rejects_weights_that_are_not_finite(word_data, value):
    run = loaded(word_data).run
    with torch.no_grad():
        run.model.output.clusters[0, 0] = value
    with pytest.raises(
        ValueError, match=r"update-00000001: output\.clusters contains NaN or infinity"
    ):
        TrainedModel(run)


@pytest.mark.parametrize("call", ["generate", "start", "embedding", "encode", "perplexity"])
def test_a_text_must_be_a_string(call, lm):
    with pytest.raises(ValueError, match="must be a string"):
        getattr(lm, call)(["the", "cat"])


def test_rejects_folders_without_a_run(tmp_path):
    with pytest.raises(ValueError, match="no checkpoints found"):
        zipflm.load(tmp_path)


def test_unknown_words_are_scored_as_unk(lm):
    (word, _) = lm.score("qqqqzz").words
    expected = lm.log_probs([""])[0, UNKNOWN]
    if word.is_unknown:
        assert word.logprob == pytest.approx(float(expected), abs=1e-5)
    else:
        assert lm.run.config.batches.unit == "bpe"


@pytest.mark.parametrize("label", ["ADP-T", "SM", "BPE"])
def test_rejects_nan_everywhere(word_data, bpe_data, label):
    lm = loaded(bpe_data if label == "BPE" else word_data, label)
    with torch.no_grad():
        lm.model.decoder.layers[0].ffn_in.weight.fill_(torch.nan)
    for ask in (
        lambda: lm.score("ba"),
        lambda: lm.next_words("ba", 3),
        lambda: lm.generate("ba", seed=1),
        lambda: lm.generate("ba", temperature=0.5, top_p=0.9, top_k=7),
        lambda: lm.log_probs(["ba"]),
    ):
        with pytest.raises(ValueError, match="an earlier checkpoint"):
            ask()


def test_does_not_import_the_compiler(word_data, tmp_path):
    """Importing it would double the start-up time."""
    runs = {"sinusoidal": ["decoder.norm=layer"], "rotary": ["decoder.norm=rms"]}
    for positions, overrides in runs.items():
        overrides = [*overrides, f"decoder.positions={positions}", "training.max_updates=1"]
        training_runs.run(word_data, tmp_path / positions, *overrides)
    code = """
        import zipflm
        for path in sys.argv[1:]:
            lm = zipflm.load(path)
            lm.score(["ba de", "ba"]), lm.next_words("ba"), lm.generate("ba", max_words=3)
        print({"torch._dynamo", "sympy", "torch.distributed.tensor"} & set(sys.modules))
    """
    child = child_code.start(code, *(tmp_path / positions for positions in runs))
    assert child.communicate(timeout=120)[0].strip() == "set()"
    assert child.returncode == 0


@pytest.fixture(scope="module")
def spelling_run(word_data, tmp_path_factory):
    """A character CNN that predicts only 20 ids."""
    run = tmp_path_factory.mktemp("runs") / "spelling"
    changes = ["input.predicted_words=20", "training.max_updates=2", "batches.tokens=256"]
    changes += ["training.tokens_per_update=256", "training.schedule.warmup_updates=1"]
    config = training_runs.config_of(word_data, *changes, preset="tiny/CNN", base=[])
    train(config, word_data, run, device="cpu")
    return run


def test_character_models_read_words_they_do_not_predict(spelling_run, word_data):
    lm = zipflm.load(spelling_run, device="cpu")
    words = lm.vocabulary.words
    assert len(words) > 30 and lm.model.output.edges[-1] == lm.run.config.num_predicted == 20
    assert sum(p.numel() for p in lm.model.parameters()) == lm.run.config.num_params()
    known, rare, other = words[4], words[25], words[30]
    scored = lm.score(f"{known} {rare} {known}")
    assert [word.is_unknown for word in scored.words] == [False, True, False, False]
    # <unk> as a target, but itself as an input.
    assert scored.words[1].logprob == lm.score(f"{known} <unk> {known}").words[1].logprob
    after = {
        lm.score(f"{known} {word} {known}").words[2].logprob for word in (rare, other, "<unk>")
    }
    assert len(after) == 3
    assert lm.log_probs([rare]).shape == (1, 20)
    generated = lm.generate(rare, max_words=5, seed=1)[0]
    assert {word.word for word in generated.words} <= set(words[:20])
    ids = word_data.tokens("valid").ids
    result = evaluate(spelling_run, data=word_data, split="valid")
    assert result.scores.protocol.unk == np.count_nonzero(ids >= 20) > 0
    assert result.bits_per_byte is None


def test_character_models_read_unseen_words(spelling_run, tmp_path):
    lm = zipflm.load(spelling_run, device="cpu")
    known = lm.vocabulary.words[4]
    texts = [f"{known} {word} {known}" for word in ("zyzzyva", "quokka", "<unk>", "zyzzyva")]
    after = [scored.words[2].logprob for scored in lm.score(texts)]
    assert len(set(after)) == 3 and after[0] == after[3]
    assert lm.score(texts)[0].words[1].is_unknown and lm.score(texts)[0].words[1].count == 0
    assert not torch.equal(*lm.log_probs(["zyzzyva", "quokka"]))
    # A vocabulary word is read like an unseen word with the same bytes.
    listed, layer = lm.vocabulary.words[25], lm.model.input
    unseen = lm.unseen([listed])[0]
    assert unseen >= len(lm.vocabulary)
    assert torch.equal(*layer(torch.tensor([[unseen], [25]])))
    (tmp_path / "text").write_text("\n".join(texts) + "\n")
    options = ScoringOptions(break_mode="sentence", device="cpu")
    scored = evaluate(spelling_run, text=tmp_path / "text", options=options).scores
    words = [word for text in lm.score(texts) for word in text.words]
    assert scored.nll == pytest.approx([-word.logprob for word in words], abs=1e-5)


def test_unseen_words_beyond_the_limit_are_unknown(spelling_run):
    unseen = UnseenWords(load_run(spelling_run).model, capacity=2)
    first, second, third, again = unseen(["a1", "b2", "c3", "a1"])
    assert second == first + 1 and third == UNKNOWN and again == first


def test_unseen_words_that_the_model_reads_alike_share_an_id(spelling_run):
    unseen = UnseenWords(load_run(spelling_run).model, capacity=2)
    first, second, third = unseen(["x" * 1_000 + "y", "x" * 1_000 + "z", "y"])
    assert first == second != third != UNKNOWN


def test_reports_reject_models_with_fewer_predicted_words(spelling_run, word_data, tmp_path):
    with pytest.raises(ValueError, match="input.predicted_words=20"):
        analyze([spelling_run], word_data.path, tmp_path / "report")


@pytest.mark.parametrize("number", [4, 1000])
def test_rejects_invalid_predicted_words(number, word_data):
    change = f"input.predicted_words={number}"
    with pytest.raises(ValueError, match=f"{change}: must be 5 to"):
        training_runs.config_of(word_data, change, preset="tiny/CNN", base=[])
