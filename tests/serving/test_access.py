"""API keys, hosts, origins, health, metrics and the OpenAPI schema."""

import base64
from pathlib import Path

import openai
import pytest
from serving.services import Running, head

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "serving.md"


def basic(password):
    return "Basic " + base64.b64encode(f"user:{password}".encode()).decode()


def test_api_keys(models):
    with Running(models, keys=[b"secret", b"other"]) as service:
        for path in ("/health", "/docs", "/openapi.json"):
            assert service.client.get(path).status_code == 200
        wrong = ("Bearer wrong", "Basic secret", "Basic %", basic("wrong"), basic(""), "secret")
        for headers in ({}, {"Host": "a/health?"}, *({"Authorization": each} for each in wrong)):
            for path in ("/", "/metrics", "/v1/models", "/tokenizer_info"):
                answer = service.client.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
            for path in ("/score", "/v1/completions", "/tokenize", "/detokenize"):
                answer = service.client.post(path, json={"text": "ba"}, headers=headers)
                assert answer.status_code == 401
            # Before the body is read.
            assert b" 401 " in service.raw(head("/score", 100))
        for key in ("Bearer secret", "Bearer other", basic("secret")):
            for path in ("/", "/v1/models"):
                answer = service.client.get(path, headers={"Authorization": key})
                assert answer.status_code == 200
        # Only the page makes browsers ask for a password.
        asked = service.client.get("/").headers["www-authenticate"]
        assert asked.startswith("Basic realm=")
        assert service.client.get("/v1/models").headers["www-authenticate"] == "Bearer"
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
        # Any host name is allowed with a key.
        headers = {"Host": "lm.example", "Authorization": "Bearer secret"}
        assert service.client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[", ""])
def test_local_service_rejects_foreign_hosts(service, host):
    for path in ("/v1/models", "/docs"):
        answer = service.client.get(path, headers={"Host": host})
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000"])
def test_local_service_accepts_local_hosts(service, host):
    assert service.client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_only_allowed_origins_get_cors_headers(models, service):
    header, origin = "access-control-allow-origin", "https://example.org"
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert header not in service.client.get("/health", headers=headers).headers
    with Running(models, origins=[origin], keys=[b"secret"]) as open_service:
        # Preflight requests have no key.
        asked = open_service.client.options("/score", headers=headers)
        assert asked.status_code == 200 and asked.headers[header] == origin
        refused = open_service.client.post("/score", json={"text": "ba"}, headers=headers)
        assert refused.status_code == 401 and refused.headers[header] == origin
        other = headers | {"Origin": "https://elsewhere.org"}
        assert header not in open_service.client.options("/score", headers=other).headers


def test_metrics(models):
    with Running(models) as service:
        service.score(["ba be", "bu"])
        service.complete("ba", max_tokens=3, lines=0)
        service.post("/score", text="")
        service.client.get("/wp-login.php")
        service.client.get("/v1/models/none")
        answer = service.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    for line in (
        'zipflm_requests_total{path="/score",status="200"} 1.0',
        'zipflm_requests_total{path="/score",status="400"} 1.0',
        'zipflm_requests_total{path="other",status="404"} 1.0',
        'zipflm_requests_total{path="/v1/models/{name}",status="404"} 1.0',
        'zipflm_tokens_total{kind="scored"} 5.0',
        'zipflm_tokens_total{kind="generated"} 3.0',
        'zipflm_batch_texts_count{kind="score"} 1.0',
        'zipflm_request_seconds_count{path="/score"} 2.0',
        "zipflm_requests_waiting 0.0",
        "zipflm_requests_in_progress 0.0",
        "zipflm_generations_in_progress 0.0",
    ):
        assert line in answer.text.splitlines()
    assert "wp-login" not in answer.text


def test_openapi_schema(service):
    described = service.client.get("/openapi.json").json()
    assert "/openapi.json" in service.client.get("/docs").text
    assert {"/score", "/v1/completions", "/v1/models"} <= set(described["paths"])
    guide = GUIDE.read_text(encoding="utf-8")
    for path in described["paths"]:
        assert f"{path.replace('{name}', 'NAME')}`" in guide, path
    post = described["paths"]["/v1/completions"]["post"]
    assert set(post["responses"]) == {"200", "4XX"}  # not FastAPI's own 422
    assert "max_tokens" in described["components"]["schemas"]["CompletionRequest"]["properties"]
