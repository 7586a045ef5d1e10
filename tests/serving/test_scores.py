"""`/score` and the tokenizer endpoints match the library."""

import json
import math

import numpy as np
import pytest
from loaded_models import loaded
from serving.services import Running

from zipflm.evaluation.documents import DocumentScores
from zipflm.language.engine import Engine
from zipflm.serving.models import make_served_model


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_scores_match_the_library(service, models, name):
    texts, lm = ["ba be bila", "noro\nka unheard-of", "ba " * 60], models[name].lm
    answer = service.score(texts, model=name)
    assert answer["model"] == name and answer["protocol"]["block"] == 16
    for ours, theirs in zip(answer["texts"], lm.score(texts), strict=True):
        assert ours["logprob"] == pytest.approx(theirs.logprob, abs=1e-4)
        assert ours["perplexity"] == pytest.approx(theirs.perplexity, rel=1e-5)
        assert ours["surprisal"] == pytest.approx(theirs.surprisal, abs=1e-4)
        for word, expected in zip(ours["words"], theirs.words, strict=True):
            assert word["logprob"] == pytest.approx(expected.logprob, abs=1e-5)
            assert word["surprisal"] == pytest.approx(expected.surprisal, abs=1e-5)
            for field in ("word", "band", "count", "is_unknown", "is_end"):
                assert word[field] == getattr(expected, field)
            assert word["span"] == (None if expected.is_end else list(expected.span))
            assert "rank" not in word and "alternatives" not in word


def test_a_prefix_is_context_for_every_text(service, words):
    answer = service.score(["bila boro", "bu"], prefix="ba be")
    for ours, text in zip(answer["texts"], ("bila boro", "bu"), strict=True):
        expected = words.lm.score(text, prefix="ba be").logprob
        assert ours["logprob"] == pytest.approx(expected, abs=1e-5)
    assert answer["protocol"]["prefix"] == 2


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_alternatives_and_ranks(service, models, name):
    text, lm = "ba be noro boro", models[name].lm
    answer = service.score(text, model=name, top=5, ranks=True, at=[2, 0, 0])
    found = answer["texts"][0]["words"]
    assert ["alternatives" in word for word in found] == [True, False, True, False, False]
    for word, before in ((found[0], ""), (found[2], "ba be")):
        likely = lm.next_words(before, 5)
        assert [each["word"] for each in word["alternatives"]] == [each.word for each in likely]
        ours = [each["logprob"] for each in word["alternatives"]]
        assert ours == pytest.approx([each.logprob for each in likely], abs=1e-5)
        # Subword models rank only the alternatives.
        number = len(lm.vocabulary) if name == "words" else 5
        names = [each.word for each in lm.next_words(before, number)]
        rank = names.index(word["word"]) + 1 if word["word"] in names else None
        assert word["rank"] == rank


def test_spans_count_characters(service):
    words = service.score("\U0001f600\u00e9 ba")["texts"][0]["words"]
    assert [word["span"] for word in words] == [[0, 2], [3, 5], None] and words[0]["is_unknown"]


def test_numbers_are_finite_json(service, monkeypatch):
    def extreme(engine, documents):
        values = [np.resize(np.float32([0.0, 3e3]), len(each.ids)) for each in documents]
        return lambda: [DocumentScores(nll, [], []) for nll in values]

    def refuse(name):
        raise AssertionError(name)

    monkeypatch.setattr(Engine, "start_scoring", extreme)
    text = service.post("/score", text="ba be").text
    (found,) = json.loads(text, parse_constant=refuse)["texts"]
    assert found["perplexity"] is None or math.isfinite(found["perplexity"])
    assert str(found["words"][0]["logprob"]) == "0.0"


@pytest.mark.parametrize("name", ["words", "pieces"])
@pytest.mark.parametrize("text", ["ba be noro", "ba\nbe", "", "</s>", "</s> ba be", "ba\n"])
def test_tokenize_and_detokenize(service, models, name, text):
    found = service.post("/tokenize", prompt=text, add_special_tokens=False, model=name).json()
    assert found["tokens"] == models[name].reader.prefix(text).tolist()
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 200
    back = service.post("/detokenize", tokens=found["tokens"], model=name).json()
    assert back == {"prompt": text}


def test_tokenize_requires_a_prompt(service):
    answer = service.post("/tokenize", text="ba be")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "prompt: missing; this field is required"


def test_tokenizer_info(service):
    info = service.client.get("/tokenizer_info").json()
    assert service.post("/tokenize", prompt=info["eos_token"]).json()["tokens"] == [2]
    assert info["bos_token"] == info["eos_token"]


@pytest.mark.parametrize("tokens", [None, 5, "ba", [-1], [10**6], [[4]], ["ba"], [1.5], [4] * 201])
def test_rejects_tokens_that_are_not_ids(service, tokens):
    answer = service.post("/detokenize", tokens=tokens)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tokens"


def test_tokenize_words_that_are_read_as_bytes(word_data):
    lm = loaded(word_data, "CNN", ["input.predicted_words=20"])
    rare = lm.vocabulary.words[25]
    text, likely = f"ba unheard-of {rare} ba", [each.word for each in lm.next_words("ba", 20)]
    with Running({"bytes": make_served_model("bytes", lm)}) as service:
        found = service.score(text, ranks=True)["texts"][0]["words"]
        assert found[1]["rank"] == likely.index("<unk>") + 1
        logprobs = service.complete(text, echo=True, logprobs=1, max_tokens=0)["choices"][0][
            "logprobs"
        ]
        assert logprobs["tokens"] == ["ba", "<unk>", rare, "ba"]
        expected = [word["logprob"] for word in found[:-1]]
        assert logprobs["token_logprobs"] == pytest.approx(expected, abs=1e-5)
        ids = service.post("/tokenize", prompt=text).json()["tokens"]
        assert ids[1:3] == [lm.vocabulary.id("<unk>"), 25]
        # More than the model predicts.
        choice = service.complete(ids, max_tokens=1, logprobs=30)["choices"][0]
        assert len(choice["logprobs"]["top_logprobs"][0]) == 20
