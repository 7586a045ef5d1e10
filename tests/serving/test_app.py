"""The HTTP side: answers against the library's own, errors in OpenAI's shape, keys and origins."""

import base64
import json
import math
import socket
import time
from contextlib import closing

import openai
import pytest
from loaded_models import loaded
from serving.services import Running, head
from small_data import make_folder

from zipflm.config import Splitting
from zipflm.serving.models import served
from zipflm.serving.tickets import Limits

ROUNDED = 1.5e-6


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as client:
        yield client


# --- Scores. ---


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_scores_are_those_of_the_library(service, models, name):
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


def test_a_prefix_stands_before_every_text(service, words):
    answer = service.score("bila boro", prefix="ba be")
    expected = words.lm.score("bila boro", prefix="ba be")
    assert answer["texts"][0]["logprob"] == pytest.approx(expected.logprob, abs=1e-5)
    assert answer["protocol"]["prefix"] == 2


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_alternatives_and_ranks_where_they_are_asked_for(service, models, name):
    text, lm = "ba be noro boro", models[name].lm
    answer = service.score(text, model=name, top=5, ranks=True, at=[2, 0])
    found = answer["texts"][0]["words"]
    assert ["alternatives" in word for word in found] == [True, False, True, False, False]
    for word, before in ((found[0], ""), (found[2], "ba be")):
        likely = lm.next_words(before, 5)
        assert [each["word"] for each in word["alternatives"]] == [each.word for each in likely]
        ours = [each["logprob"] for each in word["alternatives"]]
        assert ours == pytest.approx([each.logprob for each in likely], abs=1e-5)
        if name == "words":
            everything = lm.next_words(before, len(lm.vocabulary))
            names = [each.word for each in everything]
            assert word["rank"] == names.index(word["word"]) + 1
        else:  # of all words in pieces only the first are looked at
            names = [each.word for each in likely]
            rank = names.index(word["word"]) + 1 if word["word"] in names else None
            assert word["rank"] == rank


# --- Completions, by the client that people have. ---


def test_models_are_listed(client, models):
    listed = client.models.list().data
    assert [model.id for model in listed] == ["words", "pieces"]
    assert client.models.retrieve("pieces").owned_by == "zipflm"
    facts = listed[0].zipflm
    assert facts["factorization"] == "ADP-T" and facts["unit"] == "word"
    assert facts["words"] == models["words"].lm.vocabulary.num_words
    assert sum(band["words"] for band in facts["bands"]) == facts["words"]
    assert facts["bands"][0]["first"] == 1 and facts["perplexity"] is None


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_a_completion_is_the_text_that_the_library_writes(client, models, name):
    answer = client.completions.create(model=name, prompt="ba be", max_tokens=60, seed=1)
    expected = models[name].lm.generate("ba be", max_words=60, seed=1)[0]
    choice = answer.choices[0]
    assert choice.finish_reason == "stop" and choice.logprobs is None
    assert choice.text + "\n" == expected.continuation
    assert answer.usage.prompt_tokens == len(models[name].reader.prefix("ba be"))
    assert answer.usage.completion_tokens >= len(expected.words)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_choices_come_in_the_order_of_prompts(client):
    prompts = ["ba be", "bu"]
    answer = client.completions.create(model="words", prompt=prompts, n=3, seed=1, max_tokens=8)
    assert [choice.index for choice in answer.choices] == list(range(6))
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts[:3])) > 1
    for place, prompt in enumerate(prompts):
        one = client.completions.create(model="words", prompt=prompt, n=3, seed=1, max_tokens=8)
        assert [choice.text for choice in one.choices] == texts[3 * place : 3 * place + 3]


def test_a_prompt_of_ids_is_the_prompt_of_its_text(client, words):
    ids = words.reader.prefix("ba be").tolist()
    prompts = ["ba be", ids, [2, *ids], [ids, ids], "</s> ba be"]
    answers = [
        client.completions.create(model="words", prompt=prompt, seed=5, max_tokens=9)
        for prompt in prompts
    ]
    assert len({choice.text for answer in answers for choice in answer.choices}) == 1
    assert [answer.usage.prompt_tokens for answer in answers] == [2, 2, 3, 4, 3]


@pytest.mark.parametrize("name", ["words", "pieces"])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_repeated_prompt_has_the_scores_of_the_library(client, models, name, max_tokens):
    text, lm = "ba be noro unheard-of boro", models[name].lm
    choice = client.completions.create(
        model=name, prompt=text, max_tokens=max_tokens, logprobs=1, echo=True, temperature=0
    ).choices[0]
    ids = models[name].reader.prefix(text)
    expected = -lm.engine.nll([[*ids, 2]])[0][: len(ids)]
    found = choice.logprobs
    assert choice.text.startswith(text) and len(found.tokens) == len(ids) + max_tokens
    assert found.token_logprobs[: len(ids)] == pytest.approx(expected.tolist(), abs=1e-5)
    assert sum(found.token_logprobs[: len(ids)]) == pytest.approx(
        sum(word.logprob for word in lm.score(text).words if not word.is_end), abs=1e-4
    )
    for token, logprob, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[token] == logprob  # exactly, as harnesses compare them
        assert 1 <= len(top) <= 2
    offsets = found.text_offset
    assert offsets == sorted(offsets)
    if name == "words":
        words = text.split()
        assert [text[at:].split()[0] for at in offsets[: len(words)]] == words


def test_the_first_token_has_no_logprob_if_it_is_the_start_of_every_text(client, words):
    with_start, without = (
        client.completions.create(model="words", prompt=p, max_tokens=0, logprobs=0, echo=True)
        for p in ([2, 4, 5], [4, 5])
    )
    first, *rest = with_start.choices[0].logprobs.token_logprobs
    assert first is None
    assert rest == pytest.approx(without.choices[0].logprobs.token_logprobs, abs=1e-6)
    assert with_start.choices[0].text == without.choices[0].text == "ba be"


@pytest.mark.parametrize("options", [{}, {"echo": True}, {"logprobs": 2}, {"stop": ["b", "n"]}])
def test_a_stream_adds_up_to_the_whole_answer(client, options):
    fields = {"model": "words", "prompt": "ba be", "max_tokens": 30, "seed": 4, "n": 2} | options
    whole = client.completions.create(**fields)
    texts, reasons, tokens = ["", ""], [None, None], [[], []]
    parts = client.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}, extra_body={"lines": 1}
    )
    for part in parts:
        assert part.object == "text_completion"
        assert part.choices == [] or part.to_dict()["usage"] is None
        for choice in part.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            tokens[choice.index] += choice.logprobs.tokens if choice.logprobs else []
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert part.usage == whole.usage and part.choices == []
    if "logprobs" in options:
        assert tokens == [choice.logprobs.tokens for choice in whole.choices]


def test_a_stream_of_nothing_but_the_prompt_ends(client):
    parts = list(
        client.completions.create(
            model="words", prompt="ba", max_tokens=0, echo=True, stream=True, logprobs=1
        )
    )
    assert [(p.choices[0].text, p.choices[0].finish_reason) for p in parts] == [("ba", "length")]
    assert parts[0].choices[0].logprobs.tokens == ["ba"]


def test_lines_ask_for_more_than_one_line(client, words):
    answer = client.completions.create(
        model="words", prompt="ba", max_tokens=80, seed=21, extra_body={"lines": 3}
    )
    expected = words.lm.generate("ba", seed=21, lines=3, max_words=80)[0]
    assert answer.choices[0].text + "\n" == expected.continuation


def test_a_nucleus_of_nothing_is_the_most_likely_word(client):
    greedy, empty = (
        client.completions.create(model="words", prompt="ba", max_tokens=5, **choice)
        for choice in ({"temperature": 0}, {"top_p": 0})
    )
    assert greedy.choices[0].text == empty.choices[0].text


# --- What is wrong is said, in OpenAI's shape. ---


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": "  "}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "give a text"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({}, "prompt", "missing"),
        ({"prompt": None}, "prompt", "missing"),
        ({"prompt": {"a": 1}}, "prompt", "give a text"),
        ({"prompt": [4, 10**9]}, "prompt", "1000000000 is no id; give 0 to"),
        ({"prompt": [-1]}, "prompt", "-1 is no id"),
        ({"prompt": [4, True]}, "prompt", "not both"),
        ({"prompt": [[4], "ba"]}, "prompt", "not both"),
        ({"prompt": "a\0b"}, "prompt", "NUL"),
        ({"prompt": "\ud800"}, "prompt", "no character"),
        ({"prompt": "ba " * 190}, "prompt", "206 words, and a text has 200 at most"),
        ({"prompt": "ba", "max_tokens": -1}, "max_tokens", "must be 0 to 200"),
        ({"prompt": "ba", "max_tokens": 10**30}, "max_tokens", "must be 0 to 200"),
        ({"prompt": "ba", "max_tokens": 1.5}, "max_tokens", "whole number"),
        ({"prompt": "ba", "temperature": -0.1}, "temperature", "must be 0 to 100"),
        ({"prompt": "ba", "temperature": "hot"}, "temperature", "must be a number"),
        ({"prompt": "ba", "top_p": 2}, "top_p", "must be 0 to 1"),
        ({"prompt": "ba", "n": 0}, "n", "must be 1 to 256"),
        ({"prompt": ["ba"] * 3, "n": 100}, "prompt", "at most 256"),
        ({"prompt": "ba", "seed": 2**64}, "seed", "must be"),
        ({"prompt": "ba", "logprobs": True}, "logprobs", "whole number"),
        ({"prompt": "ba", "logprobs": 101}, "logprobs", "must be 0 to 100"),
        ({"prompt": "ba", "stop": ""}, "stop", "1 to 1000"),
        ({"prompt": "ba", "stop": [1]}, "stop", "must be a text"),
        ({"prompt": "ba", "stop": ["x"] * 17}, "stop", "16 at most"),
        ({"prompt": "ba", "stream": "yes"}, "stream", "true or false"),
        ({"prompt": "ba", "stream_options": 1}, "stream_options", "object"),
        ({"prompt": "ba", "presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"prompt": "ba", "logit_bias": {"1": 5}}, "logit_bias", "not supported"),
        ({"prompt": "ba", "best_of": 4}, "best_of", "not supported"),
        ({"prompt": "ba", "suffix": "x"}, "suffix", "not supported"),
        ({"prompt": "ba", "model": 5}, "model", "must be a text"),
    ],
)
def test_a_completion_that_cannot_be_is_refused_by_the_field(service, fields, param, reason):
    body = json.dumps(fields)
    answer = service.client.post("/v1/completions", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param
    assert error["code"] and reason in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({}, "text", "missing"),
        ({"text": ""}, "text", "empty"),
        ({"text": []}, "text", "give 1 to 256"),
        ({"text": ["ba"] * 257}, "text", "give 1 to 256"),
        ({"text": 5}, "text", "no text"),
        ({"text": ["ba", None]}, "text", "no text"),
        ({"text": "ba " * 300}, "text", "200 at most"),
        ({"text": "ba " * 150, "prefix": "ba " * 60}, "text", "200 at most"),
        ({"text": "ba", "prefix": 1}, "prefix", "must be a text"),
        ({"text": "ba", "top": -1}, "top", "must be 0 to 100"),
        ({"text": "ba", "top": 101}, "top", "must be 0 to 100"),
        ({"text": "ba", "ranks": 1}, "ranks", "true or false"),
        ({"text": "ba", "at": 1}, "at", "list of places"),
        ({"text": "ba", "at": [2]}, "at", "the words 0 to 1"),
        ({"text": "ba", "at": [-1]}, "at", "the words 0 to 1"),
        ({"text": "ba " * 60, "top": 50, "model": "pieces"}, "top", "name the words with `at`"),
    ],
)
def test_a_score_that_cannot_be_is_refused_by_the_field(service, fields, param, reason):
    answer = service.post("/score", **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param and reason in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1, 2]",
        b'"text"',
        b'{"text": NaN}',
        b'{"text": "ba", "top": Infinity}',
        b'{"text": "ba", "top": 1' + b"0" * 5000 + b"}",
        b'{"text": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
    ids=["nothing", "half", "bytes", "list", "text", "nan", "inf", "digits", "deep", "deeper"],
)
@pytest.mark.parametrize("path", ["/score", "/v1/completions", "/tokenize", "/detokenize"])
def test_what_is_no_json_object_is_refused(service, path, body):
    answer = service.client.post(path, content=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_an_unknown_model_is_not_found(service):
    for answer in (
        service.post("/v1/completions", model="other", prompt="ba"),
        service.post("/score", model="other", text="ba"),
        service.client.get("/v1/models/other"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
    answer = service.client.post("/score", content=b'{"text": "ba", "model": "\\ud800"}')
    assert answer.status_code == 404


def test_unknown_paths_and_methods_are_answered_in_the_same_shape(service):
    for answer, status in (
        (service.client.get("/nothing"), 404),
        (service.client.get("/score"), 405),
        (service.client.delete("/v1/completions"), 405),
    ):
        assert answer.status_code == status and answer.json()["error"]["message"]
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)


def test_chat_is_refused_with_the_path_to_use(client):
    with pytest.raises(openai.NotFoundError, match="/v1/completions") as caught:
        client.chat.completions.create(model="words", messages=[{"role": "user", "content": "ba"}])
    assert caught.value.code == "not_a_chat_model"


def test_every_answer_has_an_id(client, service):
    answers = [client.completions.create(model="words", prompt="ba") for _ in range(2)]
    assert len({answer._request_id for answer in answers} - {None}) == 2
    assert service.client.get("/nothing").headers["x-request-id"]


def test_a_fingerprint_tells_models_apart(client, models):
    prints = {name: client.completions.create(model=name, prompt="ba") for name in models}
    assert prints["words"].system_fingerprint != prints["pieces"].system_fingerprint
    (part, *_) = client.completions.create(model="words", prompt="ba", stream=True)
    assert part.system_fingerprint == prints["words"].system_fingerprint


@pytest.mark.parametrize("name", ["words", "pieces"])
@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
def test_offsets_are_where_tokens_stand_in_the_text(client, models, name, as_ids):
    """In the prompt and in what is written, whether the prompt is a text or ids."""
    text = "ba noro be\nbila bu"
    prompt = models[name].reader.prefix(text).tolist() if as_ids else text
    fields = {"model": name, "prompt": prompt, "max_tokens": 40, "logprobs": 0, "seed": 1}
    fields |= {"temperature": 2, "extra_body": {"lines": 0}}
    for echo in (True, False):
        whole = client.completions.create(echo=echo, **fields).choices[0]
        tokens, offsets = whole.logprobs.tokens, whole.logprobs.text_offset
        for token, offset in zip(tokens, offsets, strict=True):
            shown = "\n" if token == "</s>" else token.removesuffix("@@")
            assert whole.text[offset:].startswith(shown) or offset == len(whole.text)
        parts = client.completions.create(echo=echo, stream=True, **fields)
        streamed = [part.choices[0].logprobs.text_offset for part in parts]
        assert sum(streamed, []) == offsets


def test_a_body_that_is_too_large_is_refused_with_the_limit(service):
    limit = Limits(max_words=200).max_body
    answer = service.client.post("/score", content=b" " * (limit + 1))
    assert answer.status_code == 413 and str(limit) in answer.json()["error"]["message"]
    answer = service.client.post("/score", content=iter([b" " * 50_000] * 200))  # without a length
    assert answer.status_code == 413
    assert service.score("ba")["texts"]


def test_a_body_that_does_not_come_is_not_waited_for(models, monkeypatch):
    monkeypatch.setattr("zipflm.serving.messages._BODY_SECONDS", 0.2)
    with Running(models) as service:
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
            connection.sendall(head("/score", 100) + b"{")
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_client_that_leaves_before_its_body_is_here_is_no_failure(models):
    with Running(models) as service:
        assert service.raw(head("/score", 100) + b"{") == b""
        name = 'zipflm_requests_total{path="/score",status="499"}'
        service.until(lambda: service.metric(name) == 1)
        assert 'status="5' not in service.client.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "fields", "meant"),
    [
        ("/v1/completions", {"prompt": "ba", "logprob": 1}, "logprobs"),
        ("/v1/completions", {"prompt": "ba", "max_token": 1}, "max_tokens"),
        ("/v1/completions", {"prompt": "ba", "temprature": 1}, "temperature"),
        ("/v1/completions", {"prompt": "ba", "logprob": 1, "stream": True}, "logprobs"),
        ("/score", {"text": "ba", "rank": True}, "ranks"),
    ],
)
def test_a_misspelt_field_gets_a_warning(service, path, fields, meant):
    answer = service.post(path, **fields)
    assert answer.status_code == 200
    assert f"is it {meant}?" in answer.headers["X-Zipflm-Warning"]


def test_other_unknown_fields_are_ignored(service):
    answer = service.post("/score", text="ba", metadata={"a": 1}, **{"\u00e9t\u00e9\n": 1})
    assert answer.status_code == 200 and "X-Zipflm-Warning" not in answer.headers


def test_no_http_at_all_is_no_reason_to_fail(service):
    assert service.raw(b"\x00\x01garbage\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert service.score("ba")["texts"]


# --- Health, measurements, keys, origins. ---


def test_measurements_count_what_was_done(models):
    with Running(models) as service:
        service.score(["ba be", "bu"])
        service.complete("ba", max_tokens=3, lines=0)
        service.post("/score", text="")
        service.client.get("/wp-login.php")
        text = service.client.get("/metrics").text
    assert 'zipflm_requests_total{path="/score",status="200"} 1' in text
    assert 'zipflm_requests_total{path="/score",status="400"} 1' in text
    assert 'zipflm_requests_total{path="other",status="404"} 1' in text
    assert 'zipflm_words_total{kind="scored"} 5' in text
    assert 'zipflm_words_total{kind="written"} 3' in text
    assert 'zipflm_batch_texts_count{kind="score"} 1' in text
    assert 'zipflm_request_seconds_bucket{path="/score",le="+Inf"} 2' in text
    assert "zipflm_requests_waiting 0" in text
    assert "wp-login" not in text


def test_health_and_readiness(service):
    assert service.client.get("/health").json() == {"status": "ok"}
    assert service.client.get("/ready").json()["models"] == ["words", "pieces"]
    page = service.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")


def basic(password):
    """What a browser sends after it has asked for a password."""
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


def test_with_keys_every_path_but_health_needs_one(models):
    with Running(models, keys=[b"secret", b"other"]) as service:
        assert service.client.get("/health").status_code == 200
        wrong = ("Bearer wrong", "Basic secret", "Basic %", basic("wrong"), basic(""), "secret")
        for headers in ({}, *({"Authorization": each} for each in wrong)):
            for path in ("/", "/ready", "/metrics", "/v1/models", "/nothing"):
                answer = service.client.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
            answer = service.client.post("/score", json={"text": "ba"}, headers=headers)
            assert answer.status_code == 401
        for key in ("Bearer secret", "Bearer other", basic("secret")):
            for path in ("/", "/v1/models"):
                answer = service.client.get(path, headers={"Authorization": key})
                assert answer.status_code == 200
        # A browser asks for a password where the page is refused, and nowhere else.
        asked = service.client.get("/").headers["www-authenticate"]
        assert asked.startswith("Basic realm=")
        assert service.client.get("/v1/models").headers["www-authenticate"] == "Bearer"
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()


def test_pages_of_other_sites_are_let_in_only_where_that_was_asked_for(models, service):
    origin = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert (
        "access-control-allow-origin" not in service.client.get("/health", headers=origin).headers
    )
    with Running(models, origins=["https://example.org"]) as open_service:
        allowed = open_service.client.options("/score", headers=origin)
        assert allowed.headers["access-control-allow-origin"] == "https://example.org"
        other = origin | {"Origin": "https://elsewhere.org"}
        refused = open_service.client.options("/score", headers=other)
        assert "access-control-allow-origin" not in refused.headers


def test_a_browser_may_ask_whether_it_may_ask_without_a_key(models):
    origin = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    with Running(models, origins=["https://example.org"], keys=[b"secret"]) as service:
        assert service.client.options("/score", headers=origin).status_code == 200
        refused = service.client.post("/score", json={"text": "ba"}, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://example.org"


def test_a_client_that_does_not_read_is_not_waited_for(models, monkeypatch):
    monkeypatch.setattr("zipflm.serving.messages._SEND_SECONDS", 0.3)
    fields = {"prompt": ["ba"] * 100, "max_tokens": 999, "lines": 0, "stream": True, "logprobs": 1}
    with Running(models) as service, closing(service.begin("/v1/completions", fields)):
        service.until(lambda: service.worker.num_writing > 0)
        service.until(lambda: service.worker.num_unanswered == 0, seconds=60)
        service.until(lambda: service.worker.num_writing == 0)
        assert service.metric("zipflm_clients_left_total") == 1


def test_numbers_are_finite_json(service):
    answer = service.client.post("/score", json={"text": "ba " * 50, "top": 3, "ranks": True})

    def refuse(name):
        raise AssertionError(name)

    words = json.loads(answer.text, parse_constant=refuse)["texts"][0]["words"]
    assert all(math.isfinite(word["logprob"]) for word in words)


def test_an_answer_is_prompt(service):
    """Nothing waits for a batch to fill up."""
    service.score("ba")
    begun = time.monotonic()
    for _ in range(20):
        service.score("ba")
    assert time.monotonic() - begun < 10


# --- Requests that are meant to do harm. ---


@pytest.fixture(scope="module")
def split_service(models, tmp_path_factory):
    """With the default limits, and a model that makes a word of every bracket."""
    data = make_folder(tmp_path_factory.mktemp("data"), "split", splitting=Splitting("words"))
    with Running(models | {"split": served("split", loaded(data))}) as service:
        yield service


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": ["a"] * 75_000}, "prompt"),
        ("/v1/completions", {"prompt": [4] * 150_000}, "prompt"),
        ("/v1/completions", {"prompt": [[4] * 100_000]}, "prompt"),
        ("/v1/completions", {"prompt": "{" * 300_000, "model": "split"}, "prompt"),
        ("/score", {"text": "{" * 300_000, "model": "split"}, "text"),
        ("/score", {"text": "ba", "prefix": "{" * 300_000, "model": "split"}, "prefix"),
        ("/score", {"text": "ba"} | {f"prompt {n}": 1 for n in range(14_000)}, None),
        ("/detokenize", {"tokens": [4] * 100_000}, "tokens"),
    ],
)
def test_too_much_is_refused_while_others_are_answered(split_service, path, fields, param):
    with split_service.stalls() as stalls:
        answer = split_service.post(path, **fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert max(stalls) < 0.1


def test_a_long_text_is_encoded_while_others_are_answered(split_service):
    with split_service.stalls() as stalls:
        answer = split_service.post("/tokenize", prompt="{" * 60_000, model="split")
    assert answer.json()["count"] == 60_000
    assert max(stalls) < 0.1


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[", ""])
def test_a_local_service_refuses_other_names(service, host):
    answer = service.client.get("/v1/models", headers={"Host": host})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000"])
def test_a_local_service_answers_to_every_local_name(service, host):
    assert service.client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_with_a_key_a_proxy_may_pass_on_any_name(models):
    with Running(models, keys=[b"secret"]) as service:
        headers = {"Host": "lm.example", "Authorization": "Bearer secret"}
        assert service.client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; x=y"]
)
@pytest.mark.parametrize("path", ["/score", "/v1/completions", "/tokenize", "/detokenize"])
def test_forms_of_other_sites_are_refused(service, path, kind):
    body = json.dumps({"text": "ba", "prompt": "ba", "tokens": [4]})
    answer = service.client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code == 415 and answer.json()["error"]["message"]
    kind = "Application/JSON; charset=utf-8"
    answer = service.client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code == 200
