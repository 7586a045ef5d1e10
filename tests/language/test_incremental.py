"""`TrainedModel.start`, `advance`, `encode`, `embedding` and `similar`."""

import pickle

import numpy as np
import pytest
import torch
from loaded_models import loaded

from zipflm.evaluation.evaluate import ScoringOptions
from zipflm.language.model import TrainedModel

TEXT = "ba de ba fila\nsoro ba\n"
STEPS = ["ba", "de", "ba", "fila", "\n", "soro", "ba", "\n"]


def follow(lm, state, words):
    logprobs = []
    for word in words:
        logprob, state = lm.advance(state, word)
        logprobs.append(logprob)
    return logprobs, state


def test_word_by_word_scores_match_the_whole_text(lm):
    logprobs, _ = follow(lm, lm.start(), STEPS)
    assert logprobs == pytest.approx((-lm.score(TEXT).nll).tolist(), abs=1e-4)


def test_starts_after_a_prefix(lm):
    logprobs, _ = follow(lm, lm.start("ba de\nsoro"), ["ba", "\n"])
    expected = -lm.score("ba\n", prefix="ba de\nsoro").nll
    assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_states_can_be_continued_repeatedly(lm):
    _, state = follow(lm, lm.start(), ["ba", "de"])
    for end in ("fila", "soro ba", "qqqq", "fila"):
        logprob, after = lm.advance(state, end)
        ends, _ = lm.advance(after, "\n")
        assert logprob + ends == pytest.approx(lm.score(end, prefix="ba de").logprob, abs=1e-4)


def test_advance_many_matches_advance(lm):
    texts = ["ba", "de ba", "ba de ba fila", ""]
    states = [lm.start(text) for text in texts]
    words = ["fila", "soro", "qqqq", "ba"]
    for _ in range(2):
        together = lm.advance_many(states, words)
        alone = [lm.advance(state, word)[0] for state, word in zip(states, words, strict=True)]
        assert [logprob for logprob, _ in together] == pytest.approx(alone, abs=1e-4)
        states = [state for _, state in together]
    assert lm.advance_many([], []) == []
    with pytest.raises(ValueError, match="1 words for 4 states"):
        lm.advance_many(states, ["ba"])


def test_rejects_states_of_another_model(adp):
    other = TrainedModel(adp.run, ScoringOptions(device="cpu", memory=("cache:9",)))
    for ours, theirs in ((adp, other), (other, adp)):
        with pytest.raises(ValueError, match="states: of another model"):
            ours.advance(theirs.start("ba"), "de")
    state = pickle.loads(pickle.dumps(adp.start("ba")))
    assert adp.advance(state, "de")[0] == adp.advance(adp.start("ba"), "de")[0]


def test_reads_a_state_once(adp, monkeypatch):
    _, state = adp.advance(adp.start(), "ba")
    adp.advance(state, "de")
    monkeypatch.setattr(type(adp.model), "forward", None)
    assert adp.advance(state, "soro")[0] < 0


def test_long_texts_slide(adp):
    words = ["ba", "de", "fila"] * 10
    block, context = adp.engine.blocks.block, adp.engine.blocks.context
    logprobs, state = follow(adp, adp.start(), words)
    assert len(state.inputs) <= block
    expected = -adp.score(" ".join(words[:block]), prefix="").nll
    assert logprobs[: block - 1] == pytest.approx(expected[: block - 1].tolist(), abs=1e-4)
    seen = " ".join(words[block - context : block])
    ids = torch.tensor([adp.encode(seen)])
    with torch.no_grad():
        after = adp.model.log_probs(ids)[0, -1]
    assert logprobs[block] == pytest.approx(float(after[adp.encode(words[block])[0]]), abs=1e-4)


def test_rejects_empty_words(adp):
    with pytest.raises(ValueError, match="word='': empty"):
        adp.advance(adp.start(), "")


def test_decode_inverts_encode(lm):
    ids = lm.encode(TEXT)
    assert ids == lm.reader.text(TEXT).ids.tolist()
    assert lm.decode(ids) == TEXT
    assert lm.decode(lm.encode("ba  de")) == "ba de"
    assert lm.encode("") == []
    assert lm.decode([]) == ""
    assert lm.decode([-1, len(lm.vocabulary)]) == "<unk> <unk>"


def test_decodes_words_of_many_pieces(bpe):
    inner = next(word for word in bpe.vocabulary.words if word.endswith("@@"))
    assert bpe.decode([bpe.vocabulary.id(inner)] * 100) == inner.removesuffix("@@") * 100


def test_perplexity_matches_score(lm):
    assert lm.perplexity(TEXT) == lm.score(TEXT).perplexity


def test_embeddings_come_from_the_input_layer(lm):
    ids = torch.tensor(lm.encode("fila"))
    with torch.no_grad():
        expected = lm.model.input(ids).sum(0)
    torch.testing.assert_close(lm.embedding("fila"), expected)


def test_similar_words_have_the_highest_cosines(lm):
    found = lm.similar("ba", k=5)
    assert len(found) == 5
    assert "ba" not in dict(found)
    cosines = [cosine for _, cosine in found]
    assert cosines == sorted(cosines, reverse=True)
    for word, cosine in found:
        pair = lm.embedding("ba"), lm.embedding(word)
        assert cosine == pytest.approx(float(torch.cosine_similarity(*pair, dim=0)), abs=1e-5)
    everything = dict(lm.similar("ba", k=len(lm.vocabulary)))
    assert not {"</s>", "<unk>", "<pad>", "<s>"} & set(everything)
    assert cosines[0] == max(everything.values())


def test_rejects_embeddings_of_unknown_words(adp):
    with pytest.raises(ValueError, match="word='qqqq': not in the vocabulary"):
        adp.embedding("qqqq")
    assert adp.embedding("<unk>").shape == (adp.run.config.decoder.dim,)


def test_character_models_embed_unseen_words(word_data):
    lm = loaded(word_data, "CNN", ["input.predicted_words=64", "output.cutoffs=8,32"])
    assert not np.allclose(lm.embedding("qqqq"), lm.embedding("rrrr"))
    logprobs, _ = follow(lm, lm.start(), ["qqqq", "\n"])
    assert sum(logprobs) == pytest.approx(lm.score("qqqq").logprob, abs=1e-4)


def test_generate_accepts_the_argument_names_of_transformers(adp):
    ours = adp.generate("ba", max_words=4, num=2, seed=1, lines=0)
    theirs = adp.generate("ba", max_new_tokens=4, num_return_sequences=2, seed=1, lines=0)
    assert [text.text for text in ours] == [text.text for text in theirs]
    assert len(ours) == 2
    streamed = adp.stream("ba", max_new_tokens=4, seed=np.int64(1), lines=0)
    assert "".join(word.text for word in streamed) == ours[0].continuation
    unset = adp.stream("ba", max_words=4, max_new_tokens=None, seed=1, lines=0)
    assert "".join(word.text for word in unset) == ours[0].continuation
