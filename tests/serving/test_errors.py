"""Invalid and hostile requests get an OpenAI-style error."""

import json
import socket
from contextlib import closing

import openai
import pytest
from loaded_models import loaded
from serving.services import Running, head
from small_data import make_folder

from zipflm.config import Splitting
from zipflm.serving.models import make_served_model
from zipflm.serving.worker import Limits


def rejected(service, path, content, status=400):
    answer = service.client.post(path, content=content)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["code"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    return error


@pytest.mark.parametrize(
    ("param", "value", "reason"),
    [
        ("prompt", "", "empty"),
        ("prompt", "  ", "empty"),
        ("prompt", [], "give a text"),
        ("prompt", [[]], "empty"),
        ("prompt", None, "missing"),
        ("prompt", {"a": 1}, "give a text"),
        ("prompt", [4, 10**9], "1000000000 is not a token id; give 0 to"),
        ("prompt", [-1], "-1 is not a token id"),
        ("prompt", [10**400], "is not a token id"),
        ("prompt", [4, True], "True: Input should be a valid integer"),
        ("prompt", [None], "valid string"),
        ("prompt", "a\0b", "NUL"),
        ("prompt", "\ud800", "surrogate pair"),
        ("prompt", "ba " * 190, "206 tokens; the maximum is 200"),
        ("max_tokens", -1, "max_tokens=-1"),
        ("max_tokens", 10**30, "the maximum is 200"),
        ("max_tokens", 1.5, "max_tokens=1.5"),
        ("temperature", -0.1, "temperature=-0.1"),
        ("temperature", float("nan"), "temperature=nan"),
        ("temperature", 10**400, "valid number"),
        ("temperature", "hot", "temperature='hot'"),
        ("top_p", 2, "top_p=2"),
        ("n", 0, "n=0"),
        ("n", 257, "n=257"),
        ("logprobs", True, "logprobs=True"),
        ("logprobs", 101, "logprobs=101"),
        ("stop", "", "at least 1 character"),
        ("stop", [1], "stop=1"),
        ("stop", ["x"] * 17, "at most 16"),
        ("stream", "yes", "stream='yes'"),
        ("stream_options", 1, "stream_options=1"),
        ("presence_penalty", 0.5, "not supported"),
        ("logit_bias", {"1": 5}, "not supported"),
        ("best_of", 4, "not supported"),
        ("suffix", "x", "not supported"),
        ("model", 5, "model=5"),
    ],
)
def test_rejects_invalid_completions(service, param, value, reason):
    error = rejected(service, "/v1/completions", json.dumps({"prompt": "ba", param: value}))
    assert error["param"] == param and reason in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({}, "text", "missing"),
        ({"text": ""}, "text", "empty"),
        ({"text": []}, "text", "at least 1"),
        ({"text": ["ba"] * 257}, "text", "at most 256"),
        ({"text": 5}, "text", "text=5: give a text"),
        ({"text": ["ba", None]}, "text", "None"),
        ({"text": "ba " * 300}, "text", "the maximum is 200"),
        ({"text": "ba " * 150, "prefix": "ba " * 60}, "text", "the maximum is 200"),
        ({"text": "ba", "prefix": 1}, "prefix", "prefix=1"),
        ({"text": "ba", "top": -1}, "top", "top=-1"),
        ({"text": "ba", "ranks": 1}, "ranks", "ranks=1"),
        ({"text": "ba", "at": 1}, "at", "valid list"),
        ({"text": "ba", "at": [2]}, "at", "indices 0 to 1"),
        ({"text": "ba", "at": [-1]}, "at", "indices 0 to 1"),
        ({"text": "ba " * 60, "top": 50, "model": "pieces"}, "top", "select fewer words with `at`"),
    ],
)
def test_rejects_invalid_scores(service, fields, param, reason):
    error = rejected(service, "/score", json.dumps(fields))
    assert error["param"] == param and reason in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["ba"] * 3, "n": 100}, "n"),
        ({"n": 256, "max_tokens": 40, "logprobs": 10}, "logprobs"),
        ({"prompt": ["ba " * 40] * 256, "echo": True, "logprobs": 10, "max_tokens": 0}, "logprobs"),
    ],
)
def test_rejects_responses_that_are_too_large(service, fields, param):
    error = rejected(service, "/v1/completions", json.dumps({"prompt": "ba"} | fields))
    assert error["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"text": "\xff"}',
        b"[1, 2]",
        b'"text"',
        b'{"text": NaN, "prompt": NaN, "tokens": NaN}',
        b'{"text": "ba", "top": 1' + b"0" * 5000 + b"}",
        b'{"text": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"\\ud800": 1, "text": 1, "prompt": 1, "tokens": 1}',
    ],
)
@pytest.mark.parametrize("path", ["/score", "/v1/completions", "/tokenize", "/detokenize"])
def test_rejects_bodies_that_are_not_json_objects(service, path, body):
    rejected(service, path, body)
    assert service.score("ba")["texts"]


def test_unknown_fields_and_nulls_are_ignored(service):
    answer = service.post("/score", text="ba", metadata={"a": 1}, prefix=None, **{"\u00e9\n": 1})
    assert answer.status_code == 200


def test_unknown_models_are_not_found(service):
    for path in ("/v1/completions", "/score"):
        for name in ("other", "\\ud800"):
            body = f'{{"prompt": "ba", "text": "ba", "model": "{name}"}}'
            error = rejected(service, path, body, 404)
            assert error["code"] == "model_not_found" and "words, pieces" in error["message"]
    assert service.client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_unknown_paths_and_methods(service):
    for answer, status in (
        (service.client.get("/nothing"), 404),
        (service.client.get("/score"), 405),
        (service.client.delete("/v1/completions"), 405),
    ):
        assert answer.status_code == status and answer.json()["error"]["message"]
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)
        assert answer.headers["x-request-id"]


def test_rejects_chat_completions(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="/v1/completions") as caught:
            client.chat.completions.create(model="words", messages=[])
    assert caught.value.code == "not_a_chat_model"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_rejects_other_content_types(service, kind):
    body = json.dumps({"text": "ba"})
    answer = service.client.post("/score", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 415 and answer.json()["error"]["message"]
    kind = "Application/JSON; charset=utf-8"
    answer = service.client.post("/score", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 200


def test_rejects_large_bodies(service):
    limit = Limits(max_text_tokens=200).max_body
    answer = service.client.post("/score", content=b" " * (limit + 1))
    assert answer.status_code == 413
    assert f"{limit} bytes; send fewer" in answer.json()["error"]["message"]
    answer = service.client.post("/score", content=iter([b" " * 50_000] * 200))  # chunked
    assert answer.status_code == 413
    assert service.score("ba")["texts"]


def test_unexpected_failure_returns_500(models, monkeypatch):
    def fail(*_):
        raise RuntimeError("secret")

    with Running(models) as service:
        with monkeypatch.context() as patch:
            patch.setattr("zipflm.serving.app.Scoring", fail)
            answer = service.post("/score", text="ba")
        assert answer.status_code == 500 and "secret" not in answer.text
        assert answer.json()["error"]["type"] == "server_error"
        assert service.score("ba")["texts"]


def test_body_timeout(models, monkeypatch):
    monkeypatch.setattr("zipflm.serving.middleware.BODY_SECONDS", 0.2)
    with Running(models) as service:
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
            connection.sendall(head("/score", 100) + b"{")
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_disconnect_before_the_body(models):
    with Running(models) as service:
        assert service.raw(head("/score", 100) + b"{") == b""
        name = 'zipflm_requests_total{path="/score",status="499"}'
        service.until(lambda: service.metric(name) == 1)
        assert 'status="5' not in service.client.get("/metrics").text


def test_send_timeout(models, monkeypatch):
    monkeypatch.setattr("zipflm.serving.middleware.SEND_SECONDS", 0.3)
    fields = {"prompt": ["ba"] * 100, "max_tokens": 999, "lines": 0, "stream": True, "logprobs": 1}
    with Running(models) as service, closing(service.begin("/v1/completions", fields)):
        service.until(lambda: service.worker.num_generating > 0)
        service.until(lambda: service.worker.num_active == 0, seconds=60)
        service.until(lambda: service.worker.num_generating == 0)
        assert service.metric("zipflm_client_disconnects_total") == 1


def test_invalid_http(service):
    assert service.raw(b"\x00\x01garbage\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert service.score("ba")["texts"]


@pytest.fixture(scope="module")
def split_service(models, tmp_path_factory):
    """Default limits, and a model for which every bracket is a word."""
    data = make_folder(tmp_path_factory.mktemp("data"), "split", splitting=Splitting("words"))
    with Running(models | {"split": make_served_model("split", loaded(data))}) as service:
        yield service


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/v1/completions", {"prompt": ["a"] * 75_000}, 400),
        ("/v1/completions", {"prompt": [4] * 150_000}, 400),
        ("/v1/completions", {"prompt": [4, *["a"] * 60_000]}, 400),
        ("/v1/completions", {"prompt": "{" * 300_000, "model": "split"}, 400),
        ("/score", {"text": "{" * 300_000, "model": "split"}, 400),
        ("/score", {"text": "ba", "at": [0.5] * 60_000}, 400),
        ("/score", {"text": "ba"} | {f"prompt {n}": 1 for n in range(14_000)}, 200),
        ("/tokenize", {"prompt": "{" * 60_000, "model": "split"}, 200),
        ("/detokenize", {"tokens": [4] * 100_000}, 400),
    ],
)
def test_large_requests_do_not_block_the_event_loop(split_service, path, fields, status):
    longest = []
    for _ in range(3):  # other processes can also delay the event loop
        with split_service.stalls() as stalls:
            assert split_service.post(path, **fields).status_code == status
        longest.append(max(stalls))
    assert min(longest) < 0.1
