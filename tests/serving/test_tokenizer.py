"""The three paths that lm-evaluation-harness asks of a remote tokenizer."""

import pytest


def tokenize(service, text, **fields):
    answer = service.post("/tokenize", prompt=text, add_special_tokens=False, **fields)
    assert answer.status_code == 200
    return answer.json()


@pytest.mark.parametrize("name", ["words", "pieces"])
@pytest.mark.parametrize("text", ["ba be noro", "ba\nbe", "", "</s>", "</s> ba be", "ba\n"])
def test_texts_become_ids_and_texts_again(service, models, name, text):
    found = tokenize(service, text, model=name)
    assert found["tokens"] == models[name].reader.prefix(text).tolist()
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 200
    back = service.post("/detokenize", tokens=found["tokens"], model=name).json()
    assert back == {"prompt": text}


def test_the_info_has_the_token_before_every_text(service):
    info = service.client.get("/tokenizer_info").json()
    assert tokenize(service, info["eos_token"])["tokens"] == [2]
    assert info["bos_token"] == info["eos_token"]


@pytest.mark.parametrize("tokens", [None, 5, "ba", [-1], [10**6], [[4]], ["ba"], [1.5]])
def test_what_are_no_ids_is_refused(service, tokens):
    assert service.post("/detokenize", tokens=tokens).status_code == 400
