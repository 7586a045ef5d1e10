"""Completions with the OpenAI client match the library."""

import openai
import pytest
from loaded_models import loaded
from serving.services import Running
from small_data import make_folder

from zipflm.config import Splitting
from zipflm.serving.models import make_served_model


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_models_are_listed(client, models):
    listed = client.models.list().data
    assert [model.id for model in listed] == ["words", "pieces"]
    assert client.models.retrieve("pieces").owned_by == "zipflm"
    metadata = listed[0].zipflm
    assert metadata["factorization"] == "ADP-T" and metadata["unit"] == "word"
    assert metadata["words"] == models["words"].lm.vocabulary.num_words
    assert sum(band["words"] for band in metadata["bands"]) == metadata["words"]
    assert metadata["bands"][0]["first"] == 1 and metadata["perplexity"] is None


@pytest.mark.parametrize("name", ["words", "pieces"])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "temperature": 0.8}, {"temperature": 0}])
def test_completions_match_the_library(client, models, name, options):
    answer = client.completions.create(
        model=name, prompt="ba be", max_tokens=60, seed=1, logprobs=3, **options
    )
    expected = models[name].lm.generate("ba be", max_words=60, seed=1, **options)[0]
    choice, found = answer.choices[0], answer.choices[0].logprobs
    if choice.finish_reason == "length":  # 60 pieces here, 60 words in the library
        assert expected.continuation.startswith(choice.text)
    else:
        assert choice.text + "\n" == expected.continuation
    assert answer.usage.prompt_tokens == len(models[name].reader.prefix("ba be"))
    assert answer.usage.completion_tokens == len(found.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    if name == "words":
        logprobs = [word.logprob for word in expected.words]
        assert found.token_logprobs == pytest.approx(logprobs, abs=1e-5)
        likely = {each.word: each.logprob for each in models[name].lm.next_words("ba be", 3)}
        shown = {word: found.top_logprobs[0][word] for word in likely}
        assert shown == pytest.approx(likely, abs=1e-5)


@pytest.mark.parametrize("prompt", ["ba be", "ba be bu " * 12])  # the second exceeds the block
def test_completions_longer_than_the_block(client, words, prompt):
    expected = words.lm.generate(prompt, seed=4, max_words=40, lines=0)[0]
    assert expected.has_slid
    answer = client.completions.create(
        model="words", prompt=prompt, seed=4, max_tokens=40, logprobs=0, extra_body={"lines": 0}
    )
    found = answer.choices[0].logprobs
    assert found.tokens == [word.word for word in expected.words[:40]]
    logprobs = [word.logprob for word in expected.words[:40]]
    assert found.token_logprobs == pytest.approx(logprobs, abs=1e-5)


def test_order_of_choices(client):
    prompts = ["ba be", "bu"]
    answer = client.completions.create(model="words", prompt=prompts, n=3, seed=1, max_tokens=8)
    assert [choice.index for choice in answer.choices] == list(range(6))
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts[:3])) > 1
    for place, prompt in enumerate(prompts):
        one = client.completions.create(model="words", prompt=prompt, n=3, seed=1, max_tokens=8)
        assert [choice.text for choice in one.choices] == texts[3 * place : 3 * place + 3]


@pytest.mark.parametrize("name", ["words", "pieces"])
def test_several_choices_match_the_library(client, models, name):
    answer = client.completions.create(model=name, prompt="ba be", n=3, seed=2, max_tokens=190)
    expected = models[name].lm.generate("ba be", num=3, seed=2, max_words=190)
    assert len({text.continuation for text in expected}) == 3
    for choice, text in zip(answer.choices, expected, strict=True):
        end = "\n" if choice.finish_reason == "stop" else ""
        assert choice.text and text.continuation.startswith(choice.text + end)


def test_prompts_as_ids(client, words):
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
def test_echoed_prompt_has_the_scores_of_the_library(client, models, name, max_tokens):
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
        assert top[token] == logprob  # exactly: harnesses compare them
        assert 1 <= len(top) <= 2
    offsets = found.text_offset
    assert offsets == sorted(offsets)
    if name == "words":
        words = text.split()
        assert [text[at:].split()[0] for at in offsets[: len(words)]] == words


def test_start_token_has_no_logprob(client, words):
    with_start, without = (
        client.completions.create(model="words", prompt=p, max_tokens=0, logprobs=0, echo=True)
        for p in ([2, 4, 5], [4, 5])
    )
    first, *rest = with_start.choices[0].logprobs.token_logprobs
    assert first is None
    assert rest == pytest.approx(without.choices[0].logprobs.token_logprobs, abs=1e-6)
    assert with_start.choices[0].text == without.choices[0].text == "ba be"


@pytest.mark.parametrize("options", [{}, {"echo": True}, {"logprobs": 2}, {"stop": ["b", "n"]}])
def test_stream_adds_up_to_the_response(client, options):
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


def test_stream_of_an_echoed_prompt(client):
    parts = list(
        client.completions.create(
            model="words", prompt="ba", max_tokens=0, echo=True, stream=True, logprobs=1
        )
    )
    assert [(p.choices[0].text, p.choices[0].finish_reason) for p in parts] == [("ba", "length")]
    assert parts[0].choices[0].logprobs.tokens == ["ba"]


def test_completions_of_several_lines(client, words):
    answer = client.completions.create(
        model="words", prompt="ba", max_tokens=190, seed=3, extra_body={"lines": 3}
    )
    expected = words.lm.generate("ba", seed=3, lines=3, max_words=190)[0]
    assert answer.choices[0].text + "\n" == expected.continuation


def test_top_p_zero_is_greedy(client):
    greedy, empty = (
        client.completions.create(model="words", prompt="ba", max_tokens=5, **choice)
        for choice in ({"temperature": 0}, {"top_p": 0})
    )
    assert greedy.choices[0].text == empty.choices[0].text


def test_fingerprints(client, models):
    prints = {name: client.completions.create(model=name, prompt="ba") for name in models}
    assert prints["words"].system_fingerprint != prints["pieces"].system_fingerprint
    (part, *_) = client.completions.create(model="words", prompt="ba", stream=True)
    assert part.system_fingerprint == prints["words"].system_fingerprint


@pytest.mark.parametrize("name", ["words", "pieces"])
@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
def test_text_offsets(client, models, name, as_ids):
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


def test_prompts_with_start_token(tmp_path):
    """With any splitting rule."""
    data = make_folder(tmp_path, "split", splitting=Splitting("words"))
    model = make_served_model("split", loaded(data))
    first = model.reader.prefix("ba, be").tolist()
    with Running({"split": model}) as service:
        for text, expected in (
            ("</s> ba, be", [2, *first]),
            ("</s>\nba", [2, 2, *first[:1]]),
            ("\nba", [2, *first[:1]]),
        ):
            answer = service.complete(text, echo=True, logprobs=0, max_tokens=0)
            assert answer["usage"]["prompt_tokens"] == len(expected)
            names = [model.lm.vocabulary.words[token] for token in expected]
            logprobs = answer["choices"][0]["logprobs"]
            assert logprobs["tokens"] == names
            assert (logprobs["token_logprobs"][0] is None) is text.startswith("</s>")
        assert service.complete("</s>", max_tokens=1, temperature=0)["choices"][0]["text"]


def test_prompt_of_ids_can_end_within_a_word(client, models):
    names = models["pieces"].lm.vocabulary.words
    begun = next(token for token, name in enumerate(names) if name.endswith("@@"))
    answer = client.completions.create(
        model="pieces", prompt=[4, begun], max_tokens=3, seed=1, echo=True
    )
    assert answer.choices[0].text.startswith(f"ba {names[begun].removesuffix('@@')}")
    assert (
        not answer.choices[0].text[len(f"ba {names[begun].removesuffix('@@')}") :].startswith(" ")
    )


def test_seeds_may_be_any_integer(client):
    texts = {
        seed: client.completions.create(model="words", prompt="ba", seed=seed).choices[0].text
        for seed in (-1, 2**63 - 1, 2**64)
    }
    assert texts[-1] == texts[2**63 - 1]
