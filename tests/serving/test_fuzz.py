"""Random requests get a response or a 4xx error, and the service keeps working."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zipflm.serving.schemas import CompletionRequest, ScoreRequest

pytestmark = pytest.mark.slow

NUMBERS = st.sampled_from(
    [-(2**70), -1, 0, 1, 2, 3, 199, 200, 2**31, 2**63, 10**40, -0.0, 0.5, 1e-300, 1e300, 1.0]
)
TEXTS = st.sampled_from(
    ["", " ", "ba", "ba be", "\n", "ba\nbe\n", "</s>", "<unk> <pad>", "\0", "\ud800", "\u202e"]
) | st.text(max_size=20)
IDS = st.lists(st.integers(-1, 60) | NUMBERS, max_size=6)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
MODELS = st.sampled_from(["words", "pieces"])
PROMPTS = TEXTS | st.lists(TEXTS, max_size=3) | IDS | st.lists(IDS, max_size=3)


def fields(names, main, values):
    """Mostly valid requests, because only the first invalid field is reported."""
    others = [name for name in names if name not in (main, "model")]
    some = st.dictionaries(st.sampled_from([*others, "logprob", "un\u00e9"]), ANYTHING, max_size=3)
    return st.builds(
        lambda value, model, rest: {main: value, "model": model} | rest,
        values,
        MODELS | ANYTHING,
        some,
    )


def require_answer(answer):
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
    if answer.headers["content-type"] == "application/json":
        said = answer.json()
        if answer.status_code != 200:
            assert said["error"]["message"] and said["error"]["code"]
    else:
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text


@pytest.mark.parametrize(
    ("path", "requests"),
    [
        ("/v1/completions", fields(CompletionRequest.model_fields, "prompt", PROMPTS)),
        ("/score", fields(ScoreRequest.model_fields, "text", TEXTS | st.lists(TEXTS, max_size=3))),
        ("/tokenize", fields(["prompt"], "prompt", PROMPTS)),
        ("/detokenize", fields(["tokens"], "tokens", IDS | ANYTHING)),
    ],
    ids=["completions", "score", "tokenize", "detokenize"],
)
def test_fuzzed_objects(service, path, requests):
    @settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None)
    @given(requests)
    def ask(request):
        body = json.dumps(request)
        require_answer(service.client.post(path, content=body))

    ask()
    assert service.score("ba")["texts"]
    # The job ends shortly after the response.
    service.until(lambda: service.worker.num_active == 0)


def test_fuzzed_bodies(service):
    good = json.dumps({"prompt": "ba", "max_tokens": 2, "text": "ba", "tokens": [4]}).encode()

    @settings(max_examples=60, database=None)
    @given(
        st.sampled_from(["/score", "/v1/completions", "/tokenize", "/v1/models", "/%00/\u00e9"]),
        st.integers(0, len(good)),
        st.binary(max_size=4),
        st.integers(0, 3),
    )
    def ask(path, place, put, cut):
        body = good[:place] + put + good[place + cut :]
        require_answer(service.client.post(path, content=body))

    ask()
    assert service.score("ba")["texts"]
